"""Items with which a backend calls tools that the client itself runs: a shell, a patch, a search, a computer.

A backend that was given such a tool calls it with an item of its own type, which is passed on as it came. If the tool
is not on offer, the item is a call like any other that the backend emits: it is judged as one, so no client gets it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolsimlib.events import HostedEvent, HostedProgress, HostedStarted, StructuredCall
from toolsimlib.response.toolbox import Toolbox
from toolsimlib.wire.json_fields import string
from toolsimlib.wire.local_tools import CALLS, is_local

_COMPUTER = ("computer", "computer_use", "computer_use_preview")
"""The types under which a computer is declared. Only a backend can serve it, so it is never on offer here."""


class ClientItems:
    """Decides about the items of one answer."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._withheld: set[str] = set()  # The keys of announced items that the client does not get.

    def take(self, event: HostedEvent) -> HostedEvent | StructuredCall | None:
        """Return what is emitted for an event: the event, the call that is judged in place of its item, or nothing."""
        if isinstance(event, HostedProgress):
            return None if event.key in self._withheld else event
        if isinstance(event, HostedStarted):
            if self._call(event.item) is None:
                return event
            self._withheld.add(event.key)
            return None
        return self._call(event.item) or event

    def _call(self, item: Mapping[str, Any]) -> StructuredCall | None:
        """Return the call that an item is, None if it passes."""
        kind = string(item.get("type"))
        if kind == "computer_call" and self._toolbox.excludes(_COMPUTER):
            return StructuredCall(_COMPUTER[0], json.dumps(item.get("action")))
        local = CALLS.get(kind)
        if local is None or not is_local(item):
            return None
        lookup = self._toolbox.called(local.kind, None)
        if lookup.may_pass or (lookup.tool is not None and lookup.tool.kind == local.kind):
            return None
        return StructuredCall(local.kind, json.dumps(local.arguments(item), ensure_ascii=False))
