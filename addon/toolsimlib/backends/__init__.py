"""The loopback server that presents a built-in backend as a text-only upstream."""
