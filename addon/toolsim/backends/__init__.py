"""The built-in backends: models that run in this process, and the server on the loopback in front of them."""
