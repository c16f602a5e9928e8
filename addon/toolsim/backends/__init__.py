"""Contains the built-in backends, which are models in this process, and their loopback HTTP server."""
