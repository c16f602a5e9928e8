"""The proxy: the only package that imports mitmproxy."""
