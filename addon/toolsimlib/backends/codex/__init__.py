"""The Codex app-server as a backend: its child process, its JSON-RPC, and turns that take text only."""
