"""The command ``toolsim``, which starts mitmproxy with the addon, and related programs."""
