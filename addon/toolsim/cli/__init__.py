"""The command ``toolsim``: it starts mitmproxy with the addon, and what belongs to it."""
