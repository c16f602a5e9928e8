"""How often does it work: scenarios and benchmarks through toolsim, the server's own tools, and a plain prompt."""
