"""Selects the tools that a question needs, based only on the question's words.

A question is split into clauses ("… and …", "…, …", sentences), but never inside quotation marks. For each clause, each
tool has a score:

    3 for each word in the tool's name that is also in the clause, and 1 for each such word in the tool's description,
    parameter names or enum values

The tool with the highest score is called if its score is at least ``_MIN_SCORE``. A clause without such a tool ("and in
Paris") belongs to the tool of the preceding clause. Such clauses at the beginning belong to the first tool. The
selection is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolsim.backends.scripted.word_match import shared, words
from toolsim.core.plan import Tool
from toolsim.wire.json_fields import mapping

_NAME_SCORE = 3
# Minimum score for a call. One word from the tool's name, or two other words, are enough.
_MIN_SCORE = 2

_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|„[^“”]*[“”]|(?<!\w)'[^']*'(?!\w)|`[^`]*`")
_CLAUSE_END = re.compile(r"[?!;\n]|\.(?=\s|$)|,(?=\s)|\b(?:and|then)\b")


def choose(question: str, tools: Sequence[Tool], *, forced: bool = False) -> list[tuple[Tool, str]]:
    """Return the tools that the question requires, each with the clauses that belong to it.

    If ``forced`` is true, the result contains at least one tool.
    """
    chosen: list[tuple[Tool, int]] = []
    for start, end in _clauses(question):
        tool = _best(question[start:end], tools)
        if tool is not None and not (chosen and chosen[-1][0] is tool):
            chosen.append((tool, start))
    if not chosen:
        tool = _best(question, tools, 0 if forced else _MIN_SCORE)
        chosen = [(tool, 0)] if tool else []
    starts = [0, *(start for _, start in chosen[1:]), len(question)]
    return [(tool, question[starts[i] : starts[i + 1]]) for i, (tool, _) in enumerate(chosen)]


def mask_quotes(text: str) -> str:
    """Return the text with a placeholder in place of each character inside a quotation."""
    return _QUOTED.sub(lambda found: "\0" * len(found[0]), text)


def quotes(text: str) -> Iterable[re.Match[str]]:
    """Return an iterator over the quotations in the text. A match includes the quotation marks."""
    return _QUOTED.finditer(text)


def _clauses(text: str) -> list[tuple[int, int]]:
    ends = [found.span() for found in _CLAUSE_END.finditer(mask_quotes(text))]
    starts = [0, *(end for _, end in ends)]
    return list(zip(starts, [*(start for start, _ in ends), len(text)], strict=True))


def _best(text: str, tools: Sequence[Tool], least: int = _MIN_SCORE) -> Tool | None:
    """Return the tool with the highest score, or None if this score is lower than ``least``.

    If scores are equal, the tool whose name has the fewest words is returned.
    """
    sentence = words(mask_quotes(text))
    ranked = [(_score(tool, sentence), -len(words(tool.name)), -index) for index, tool in enumerate(tools)]
    best = max(ranked, default=(-1, 0, 0))
    return tools[-best[2]] if best[0] >= least else None


def _score(tool: Tool, sentence: Sequence[str]) -> int:
    name = shared(words(tool.name), sentence)
    other = shared([*words(tool.description or ""), *_parameter_words(tool.parameters)], sentence) - name
    return _NAME_SCORE * len(name) + len(other)


def _parameter_words(schema: Mapping[str, Any] | None) -> Iterable[str]:
    for name, parameter in mapping(mapping(schema).get("properties")).items():
        yield from words(name)
        values = mapping(parameter).get("enum")
        for value in values if isinstance(values, list) else ():
            yield from words(str(value))
