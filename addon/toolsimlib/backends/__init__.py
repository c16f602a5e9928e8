"""Text-only upstreams of our own, served on loopback."""
