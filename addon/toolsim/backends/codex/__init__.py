"""Uses the Codex app-server as a text-only backend.

``backend`` runs one turn per request. ``server`` keeps a child process running, and ``child`` represents one child
process. The other modules do no I/O. ``request`` and ``turn`` translate between toolsim and Codex, ``errors`` and
``jsonrpc`` implement Codex's formats, and ``text_only`` contains the settings that disable Codex's tools.
"""
