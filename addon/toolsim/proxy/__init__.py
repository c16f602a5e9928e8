"""The edge: the only wing that imports mitmproxy."""
