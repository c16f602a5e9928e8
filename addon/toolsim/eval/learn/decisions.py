"""Defines the decisions about a model, in the order in which they are made.

A decision has challengers, each of which changes one value of the current setting, and the kinds of questions that can
show a difference. A challenger that is preferred (``rule.py``) becomes the current setting, which later challengers
have to beat. The call forms come first, since everything else depends on them. The options with the largest effect
follow. Options that have never won in our measurements are last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Setting:
    """The values of the options that are tuned."""

    manifest: str = "auto"
    mode: str = "inject"
    second_opinion: str = "undeclared"
    constrain: str = "auto"
    history: str = "auto"

    def values(self) -> dict[str, str]:
        """Return all values by option name, without the prefix ``toolsim_``."""
        return asdict(self)

    def changed(self) -> dict[str, str]:
        """Return the values that differ from the defaults."""
        return {name: value for name, value in self.values().items() if value != DEFAULTS[name]}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.changed().items()) or "defaults"


DEFAULTS = Setting().values()
"""The default values, which are kept unless a challenger is preferred."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. ``values`` are its challengers, as (option, value). ``injected``: whether native mode skips it."""

    what: str
    values: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    injected: bool = True

    def challengers(self, setting: Setting) -> list[Setting]:
        """Return the challengers of a setting. Each of them differs from the setting in one value."""
        if self.injected and setting.mode == "native":
            return []
        found = [replace(setting, **{name: value}) for name, value in self.values]
        # Only the manifest "auto" has a variant that requests several calls.
        if self.what == "several calls" and setting.manifest != "auto":
            return []
        return [challenger for challenger in found if challenger != setting]


_ALL = ("one", "two", "none", "refusal", "after", "long")


def decisions(engine: str) -> Sequence[Decision]:
    """Return the decisions to be made for a backend with this engine."""
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
        Decision("enforcement", (("constrain", enforced),), ("must", "one", "two")),
        Decision("history", (("history", "bracketed"),), ("done", "which", "after", "later")),
        Decision("shortest form", (("manifest", "typescript"),), _ALL),
    )


def count(decided: Sequence[Decision]) -> int:
    """Return the number of challengers in all decisions, including those that may be skipped."""
    return sum(len(decision.values) for decision in decided)
