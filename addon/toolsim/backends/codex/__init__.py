"""The Codex app-server as a text-only backend.

``backend`` runs one turn per request; ``server`` keeps a child process running, and ``child`` represents one such
process. The other modules do no I/O. ``request`` and ``turn`` translate between toolsim and Codex, and ``errors``,
``jsonrpc`` and ``text_only`` implement Codex's formats.
"""
