"""A style sheet of mitmweb's, with more rules."""

from __future__ import annotations

from pathlib import Path

from tornado.web import RequestHandler


class StyleSheet(RequestHandler):
    """Serves a style sheet with ``more`` appended."""

    def initialize(self, path: Path, more: str) -> None:
        """Take what the address of this handler is for."""
        self._path = path
        self._more = more

    def get(self) -> None:
        """Send it."""
        self.set_header("Content-Type", "text/css")
        self.finish(self._path.read_text(encoding="utf-8") + self._more)
