"""The command ``toolsim``: starts mitmproxy with the addon, and related programs."""
