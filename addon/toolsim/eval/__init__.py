"""Evaluates models with scenarios and benchmarks: through toolsim, with the server's tools, or in a plain prompt."""
