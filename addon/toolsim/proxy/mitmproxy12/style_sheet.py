"""mitmweb's style sheet, extended."""

from __future__ import annotations

from pathlib import Path

from tornado.web import RequestHandler


class StyleSheet(RequestHandler):
    """Serves a style sheet with ``more`` appended."""

    def initialize(self, path: Path, more: str) -> None:
        """Receive the parameters of this handler's route."""
        self._path = path
        self._more = more

    def get(self) -> None:
        """Send the style sheet."""
        self.set_header("Content-Type", "text/css")
        self.finish(self._path.read_text(encoding="utf-8") + self._more)
