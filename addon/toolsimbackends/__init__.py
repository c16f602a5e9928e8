"""The built-in backends: models that run in this process; ``toolsimlib.backends`` serves them on the loopback."""
