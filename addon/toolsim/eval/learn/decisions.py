"""What there is to decide about a model, in the order in which it is decided.

A decision has challengers, each the setting so far with one value changed, and the kinds of questions that can tell
the difference. A challenger that is preferred (``rule.py``) takes the place of the setting so far; so later ones have
to be better than it. First the forms, since all else depends on them; then what costs most right answers; last what
has never been seen to win yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

DEFAULTS: Mapping[str, str] = {
    "manifest": "auto",
    "mode": "inject",
    "second_opinion": "undeclared",
    "constrain": "auto",
    "history": "auto",
}
"""The options that are learned, with the values that are kept unless another one is preferred."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Values of the options that are learned."""

    manifest: str = DEFAULTS["manifest"]
    mode: str = DEFAULTS["mode"]
    second_opinion: str = DEFAULTS["second_opinion"]
    constrain: str = DEFAULTS["constrain"]
    history: str = DEFAULTS["history"]

    def values(self) -> dict[str, str]:
        """Return all values by the short names of their options."""
        return {name: getattr(self, name) for name in DEFAULTS}

    def changed(self) -> dict[str, str]:
        """Return those that are not the defaults."""
        return {name: value for name, value in self.values().items() if value != DEFAULTS[name]}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.changed().items()) or "defaults"


@dataclass(frozen=True, slots=True)
class Decision:
    """``values``: those that challenge, as option and value. ``injected``: it makes sense only without native tools."""

    what: str
    values: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    injected: bool = True

    def challengers(self, setting: Setting) -> list[Setting]:
        """Return what challenges a setting."""
        if self.injected and setting.mode == "native":
            return []
        found = [replace(setting, **{name: value}) for name, value in self.values]
        # Another way of asking for several calls is one of this form only.
        if self.what == "several calls" and setting.manifest != "auto":
            return []
        return [challenger for challenger in found if challenger != setting]


_ALL = ("one", "two", "none", "refusal", "after", "long")


def decisions(engine: str) -> Sequence[Decision]:
    """Return what can be decided with a backend of an engine."""
    enforced = {"llama.cpp": "gbnf", "vllm": "structural_tag", "sglang": "structural_tag"}.get(engine, "json_schema")
    return (
        Decision(
            "form",
            (("manifest", "hermes"), ("mode", "native"), ("manifest", "schemas")),
            _ALL,
            injected=False,
        ),
        Decision(
            "second opinion",
            (("second_opinion", "on"),),
            ("near", "asked"),
            injected=False,
        ),
        Decision("several calls", (("manifest", "lines"),), ("two", "one", "long")),
        Decision("what is enforced", (("constrain", enforced),), ("must", "one", "two")),
        Decision("history", (("history", "bracketed"),), ("done", "which", "after", "later")),
        Decision("the shortest form", (("manifest", "typescript"),), _ALL),
    )


def count(decided: Sequence[Decision]) -> int:
    """Return how many challengers there may be in all."""
    return sum(len(decision.values) for decision in decided)
