"""Defines the version once, for the package's metadata, ``toolsim --version`` and the handshake with Codex."""

__version__ = "0.2.0"
