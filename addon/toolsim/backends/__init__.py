"""The built-in backends: models that run in this process, and the loopback server that presents them over HTTP."""
