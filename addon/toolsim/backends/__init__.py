"""The built-in backends, which are models in this process, and the loopback server that presents them over HTTP."""
