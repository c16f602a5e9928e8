"""The Codex app-server as a text-only backend.

``backend`` puts a request through one turn; ``server`` keeps a child process running and ``child`` is one of them.
The rest does no I/O: ``request`` and ``turn`` translate, ``errors``, ``jsonrpc`` and ``text_only`` know Codex's
formats.
"""
