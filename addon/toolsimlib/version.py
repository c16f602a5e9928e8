"""The version, in the one place where it stands: the package's metadata, ``toolsim --version`` and Codex ask here."""

__version__ = "0.1.0"
