"""What is known of one exchange when it is over: source of the log line, headers, metrics and flow comment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

MAX_NAMES = 64
"""A model may invent any number of names; what is told of an exchange in one line has to stay one."""


@dataclass(slots=True)
class Report:
    """Counts and names, never argument values or texts. The one mutable record: each room adds what only it knows.

    ``blocks``: the call blocks in the order of their verdicts, each as ``choice``; ``start`` and ``end`` (characters in
    that choice's text); ``verdicts`` ("call NAME", "passed over NAME", "text REASON", "failure REASON"); ``repairs``.
    """

    client: str = ""
    backend: str = ""
    model: str = ""
    stream: bool = False
    tools: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    parse_failures: list[str] = field(default_factory=list)
    strict_failures: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    echoed_calls: int = 0
    outputs_replaced: int = 0
    dropped: list[str] = field(default_factory=list)
    tool_cutoff: str | None = None
    truncated: bool = False
    mode: str = "openai-json"
    finish: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as ``flow.metadata`` (which must stay savable) demands."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """Return what is told in one line: the count of calls, and all entries that say something.

        Without the places of the blocks, which are for the view, and which the other entries tell in short.
        """
        told = {key: value for key, value in self.as_dict().items() if value not in ([], "", None, 0, False)}
        told.pop("blocks", None)
        for key, value in told.items():
            if isinstance(value, list) and len(value) > MAX_NAMES:
                told[key] = [*value[:MAX_NAMES], f"and {len(value) - MAX_NAMES} more"]
        return told | {"tool_call_count": len(self.calls)}
