"""Contains the built-in backends, which need no separate server, and the loopback server that answers for them."""
