"""Evaluates models with scenarios and benchmarks, through toolsim, the server's tool support, or a plain prompt."""
