"""Finds the tool that a model or a backend means by a name.

All names are looked up in this module. Therefore, a masked tool cannot be called in any call form. The first matching
row determines the result:

| the name                                                                    | means             |
|-----------------------------------------------------------------------------|-------------------|
| of an offered tool, as shown to the model                                   | this tool         |
| of an offered tool in a structured call, with its namespace or unambiguous  | this tool         |
| of a masked tool, or a name on the denylist                                 | no tool: masked   |
| a misspelling of exactly one of these names (``fit_name``)                  | as for that name  |
| any other name                                                              | no tool: unknown  |

With ``toolsim_unknown_tool=call``, a call to an unknown tool is passed on (``may_pass``), unless the client's tool
choice or the operator's lists exclude the name in any spelling.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from toolsim.core.plan import Plan, Tool
from toolsim.core.report import loggable_name
from toolsim.response.repair import common_spelling, fit_name
from toolsim.response.verdict import MASKED_TOOL, TOOL_NAME, UNKNOWN_TOOL


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of looking up a name: a tool, or the ``reason`` why no tool can be called by this name."""

    tool: Tool | None = None
    reason: str = UNKNOWN_TOOL
    codes: tuple[str, ...] = ()
    """The code of the repair if the name is misspelled, otherwise empty."""
    may_pass: bool = False
    """Whether the client receives a call with this name, although there is no such tool."""


class Toolbox:
    """The tools that can be called in an answer. Call ``written`` or ``called`` to look up a name."""

    def __init__(self, plan: Plan) -> None:
        policy = plan.policy
        self._tools = {tool.name: tool for tool in plan.tools}
        self._sorted = sorted(self._tools)
        self._masked = plan.masked_tools | policy.tool_denylist
        self._repairs = policy.repair == "safe"
        self._passes_unknown = policy.unknown_tool == "call" and UNKNOWN_TOOL not in plan.retries_allowed
        self._excludes = policy.excludes
        self._is_unlimited = plan.tool_choice.mode != "none" and plan.tool_choice.names is None
        self._spellings = [
            (spelling, tool.name)
            for tool in plan.tools
            for spelling in _spellings(tool)
            if spelling == tool.name or spelling not in self._tools
        ]
        known = {spelling for spelling, _ in self._spellings}
        self._withheld = {name for masked in self._masked for name in _endings(masked)} - known | self._masked

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the offered tools, as shown to the model."""
        return tuple(self._tools)

    @property
    def spellings(self) -> list[str]:
        """The names of the offered tools, sorted. If repairs are allowed, their common spellings are also included
        (``common_spelling``).
        """
        return sorted({*self._tools, *(map(common_spelling, self._tools) if self._repairs else ())})

    def has_prefix(self, start: str) -> bool:
        """Return whether the name of an offered tool begins with ``start``."""
        place = bisect_left(self._sorted, start)
        return place < len(self._sorted) and self._sorted[place].startswith(start)

    def parameters(self, name: str) -> Collection[str] | None:
        """Return the names of a tool's parameters, or None if no tool can be called by this name."""
        tool = self.written(name).tool
        return None if tool is None else tuple(tool.declared)

    def __getitem__(self, name: str) -> Tool:
        """Return the offered tool that the model knows as ``name``. Raises KeyError if there is no such tool."""
        return self._tools[name]

    def written(self, name: str | None) -> Lookup:
        """Look up a name that the model wrote in its text. ``name`` is None if it could not be read."""
        if name is None:
            return Lookup()
        if name in self._tools:
            return Lookup(self._tools[name])
        return self._no_exact(name, (name,))

    def offers(self, name: str) -> bool:
        """Return whether a tool can be called by this name in the model's text."""
        return self.written(name).tool is not None

    def called(self, name: str, namespace: str | None) -> Lookup:
        """Look up the name of a tool in a structured call from the backend."""
        whole = f"{namespace}__{name}" if namespace else name
        if not namespace and name in self._tools:
            return Lookup(self._tools[name])
        if whole in self._masked:
            return Lookup(reason=MASKED_TOOL)
        fits = [tool for tool in self._tools.values() if tool.wire_name == name]
        exact = [tool for tool in fits if tool.namespace == namespace]
        if exact or (not namespace and len(fits) == 1):
            return Lookup((exact or fits)[0])
        return self._no_exact(f"{namespace}.{name}" if namespace else name, (whole, name))

    def excludes(self, names: Iterable[str]) -> bool:
        """Return whether the operator's lists exclude a tool that has any of these names."""
        names = set(names)
        return not names.isdisjoint(self._masked) or self._excludes(names)

    def _no_exact(self, spelled: str, names: tuple[str, ...]) -> Lookup:
        """Look up a name that is not exactly the name of an offered tool.

        ``names``: all variants of the name that the operator's lists might contain.
        """
        fit = fit_name(spelled, [*self._spellings, *((name, name) for name in self._withheld)])
        if fit in self._withheld or not self._withheld.isdisjoint(names):
            return Lookup(reason=MASKED_TOOL)
        if fit is not None and self._repairs:
            return Lookup(self._tools[fit], codes=(TOOL_NAME,))
        may_pass = self._passes_unknown and loggable_name(spelled) == spelled and not self.excludes(names)
        return Lookup(may_pass=may_pass and self._is_unlimited and not self._resembles_masked(spelled, *names))

    def _resembles_masked(self, *names: str) -> bool:
        """Return whether any of ``names`` is a misspelling of a masked tool's name, even if it also resembles the name
        of another tool.
        """
        masked = [(name, "") for name in self._withheld]
        return any(fit_name(name, masked) is not None for name in names)


def _spellings(tool: Tool) -> tuple[str, ...]:
    """Return the names by which a tool can be called: the name that the model sees and, if the tool has a namespace,
    the client's name for the tool with and without the namespace.
    """
    dotted = f"{tool.namespace}.{tool.wire_name}"
    return (tool.name, tool.wire_name, dotted) if tool.namespace else (tool.name,)


def _endings(name: str) -> Iterator[str]:
    """Yield the spellings of a tool's name (see ``_spellings``) for each namespace that ``name`` might begin with."""
    yield name
    head, separator, rest = name.partition("__")
    while separator:
        yield from (rest, f"{head}.{rest}")
        more, separator, rest = rest.partition("__")
        head = f"{head}__{more}"
