"""The built-in backends: text-only upstreams that run in this process and are served on its loopback."""
