"""Evaluation of models with scenarios and benchmarks: through toolsim, the server's own tools, and a plain prompt."""
