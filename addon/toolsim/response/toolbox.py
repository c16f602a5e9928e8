"""The tools of one answer, by every name that a model or a backend might use for them.

All names are looked up in this module, so that a name that is masked in one form of a call is masked in all forms. The
first matching row decides:

| the name                                                                    | means             |
|-----------------------------------------------------------------------------|-------------------|
| of an offered tool, as shown to the model                                   | this tool         |
| of an offered tool in a structured call, with its namespace, or if unique   | this tool         |
| of a masked tool, or any name on the denylist                               | no tool: masked   |
| in one of the above rows, misspelled, if similar to no other (``fit_name``) | as in this row    |
| in no other row                                                             | no tool: unknown  |

With ``toolsim_unknown_tool=call``, a call to an unknown tool is passed on (``may_pass``), unless the client's choice or
the operator's lists exclude its name, in any spelling.
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
    """The meaning of a name: a tool, or the ``reason`` why the name does not mean a tool."""

    tool: Tool | None = None
    reason: str = UNKNOWN_TOOL
    codes: tuple[str, ...] = ()
    """The code of the repair if the tool's name is misspelled, otherwise empty."""
    may_pass: bool = False
    """Whether a call to this name is passed on although the tool does not exist."""


class Toolbox:
    """The tools of a plan, by name."""

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
        """The sorted names of the offered tools. If repairs are allowed, their common spellings (``common_spelling``)
        are included.
        """
        return sorted({*self._tools, *(map(common_spelling, self._tools) if self._repairs else ())})

    def has_prefix(self, start: str) -> bool:
        """Return whether the name of an offered tool begins with ``start``."""
        place = bisect_left(self._sorted, start)
        return place < len(self._sorted) and self._sorted[place].startswith(start)

    def parameters(self, name: str) -> Collection[str] | None:
        """Return the parameter names of the offered tool that ``name`` means, or None if it means no tool."""
        tool = self.written(name).tool
        return None if tool is None else tuple(tool.declared)

    def __getitem__(self, name: str) -> Tool:
        """Return the offered tool that the model knows as ``name``."""
        return self._tools[name]

    def written(self, name: str | None) -> Lookup:
        """Return the meaning of a name in the model's text; None stands for an unreadable name."""
        if name is None:
            return Lookup()
        if name in self._tools:
            return Lookup(self._tools[name])
        return self._no_exact(name, (name,))

    def offers(self, name: str) -> bool:
        """Return whether a name in the model's text means an offered tool."""
        return self.written(name).tool is not None

    def called(self, name: str, namespace: str | None) -> Lookup:
        """Return the meaning of the name in a structured call from the backend."""
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
        """Return whether the operator's lists exclude a tool with these names."""
        names = set(names)
        return not names.isdisjoint(self._masked) or self._excludes(names)

    def _no_exact(self, spelled: str, names: tuple[str, ...]) -> Lookup:
        """Return the meaning of a name that no offered tool has. ``names``: all forms of this name that the operator's
        lists might contain.
        """
        fit = fit_name(spelled, [*self._spellings, *((name, name) for name in self._withheld)])
        if fit in self._withheld or not self._withheld.isdisjoint(names):
            return Lookup(reason=MASKED_TOOL)
        if fit is not None and self._repairs:
            return Lookup(self._tools[fit], codes=(TOOL_NAME,))
        may_pass = self._passes_unknown and loggable_name(spelled) == spelled and not self.excludes(names)
        return Lookup(may_pass=may_pass and self._is_unlimited and not self._resembles_masked(spelled, *names))

    def _resembles_masked(self, *names: str) -> bool:
        """Return whether any of the names is a misspelling of a masked name, even if it also resembles other names."""
        masked = [(name, "") for name in self._withheld]
        return any(fit_name(name, masked) is not None for name in names)


def _spellings(tool: Tool) -> tuple[str, ...]:
    """Return all names for a tool: the name that the model uses and, if the tool is in a namespace, the client's name
    for it, with and without the namespace.
    """
    dotted = f"{tool.namespace}.{tool.wire_name}"
    return (tool.name, tool.wire_name, dotted) if tool.namespace else (tool.name,)


def _endings(name: str) -> Iterator[str]:
    """Yield the names that ``_spellings`` returns, for a tool whose namespace is no longer known."""
    yield name
    head, separator, rest = name.partition("__")
    while separator:
        yield from (rest, f"{head}.{rest}")
        more, separator, rest = rest.partition("__")
        head = f"{head}__{more}"
