"""Implements the command ``toolsim``, which starts mitmproxy with the addon, and its subcommands."""
