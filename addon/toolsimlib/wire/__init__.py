"""The two APIs on the wire: bytes and dicts to words and back. The only wing that knows a dialect."""
