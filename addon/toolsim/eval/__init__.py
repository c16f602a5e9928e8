"""Evaluates models with scenarios and benchmarks: through toolsim, with the server's own tools, or a plain prompt."""
