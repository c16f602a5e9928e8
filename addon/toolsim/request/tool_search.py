"""Searches deferred tools by regular expression or by words.

A search covers the names, descriptions and parameters of tools. A small model's pattern is often just a list of words,
so if a pattern has no match or is invalid, its words are searched for instead.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolsim.core.plan import Tool
from toolsim.wire.json_fields import array, mapping, string

MAX_FOUND = 5
"""Maximum number of results, as in Anthropic's search."""
_MAX_PATTERN = 200
"""Maximum length of a pattern, as in Anthropic's search."""
_SECONDS, _LEAST_SECONDS = 0.25, 0.001
"""Time limit for all searches for one pattern, and the minimum time limit for each search, in seconds."""
_MAX_TEXT = 4_000
"""Maximum number of characters of a tool's description and parameters that are searched."""
_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# BM25 with the usual constants. A word in a name counts three times.
_K, _B, _OF_NAME = 1.2, 0.75, 3
_LEAST = 0.25
"""Minimum score, as a share of the best score. It excludes tools that match only common words such as "the"."""


def find_tools(tools: Sequence[Tool], arguments: Mapping[str, Any]) -> list[Tool]:
    """Return at most ``MAX_FOUND`` tools that match a search. The best match is first."""
    pattern, query = string(arguments.get("pattern")), string(arguments.get("query"))
    # In the Responses API, a search can name a namespace or tool by its path.
    paths = [path for path in array(arguments.get("paths")) if isinstance(path, str)]
    texts = [_texts(tool) for tool in tools]
    found = _by_pattern(tools, texts, pattern) if 0 < len(pattern) <= _MAX_PATTERN else []
    found = found or _by_words(tools, texts, " ".join([pattern[:_MAX_TEXT], query[:_MAX_TEXT], *paths[:MAX_FOUND]]))
    return found[:MAX_FOUND]


def _texts(tool: Tool) -> tuple[str, str]:
    """Return the name of a tool, and the rest of its searchable text."""
    described = [f"{name} {string(mapping(schema).get('description'))}" for name, schema in tool.declared.items()]
    return tool.name, "\n".join([tool.description or "", *described])[:_MAX_TEXT]


def _by_pattern(tools: Sequence[Tool], texts: Sequence[tuple[str, str]], pattern: str) -> list[Tool]:
    # Importing ``regex`` takes a while, so it is imported only when needed.
    import regex

    from toolsim.schema.patterns import MAX_ATOMS, atoms

    if atoms(pattern) > MAX_ATOMS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = regex.compile(pattern, regex.IGNORECASE)
        in_name, elsewhere = list[Tool](), list[Tool]()
        deadline = time.monotonic() + _SECONDS
        for tool, searched in zip(tools, texts, strict=True):
            for text, found in zip(searched, (in_name, elsewhere), strict=True):
                if compiled.search(text, timeout=max(deadline - time.monotonic(), _LEAST_SECONDS)):
                    found.append(tool)
                    break
    except (regex.error, TimeoutError, RecursionError, OverflowError, ValueError):
        return []
    return [*in_name, *elsewhere]


def _by_words(tools: Sequence[Tool], texts: Sequence[tuple[str, str]], query: str) -> list[Tool]:
    """Return the tools that contain any of the words, ranked by BM25. A tool named by the query is first."""
    words = _words(query)
    if not words:
        return []
    counts = [Counter([*_words(name) * _OF_NAME, *_words(text)]) for name, text in texts]
    average = sum(map(Counter.total, counts)) / max(len(counts), 1) or 1
    having = {word: sum(word in count for count in counts) for word in words}
    scores = list[float]()
    for tool, count in zip(tools, counts, strict=True):
        length = _K * (1 - _B + _B * count.total() / average)
        score = sum(
            math.log(1 + (len(counts) - having[word] + 0.5) / (having[word] + 0.5))
            * (count[word] * (_K + 1) / (count[word] + length))
            for word in words
        )
        scores.append(score + (1e6 if tool.name.casefold() == query.strip().casefold() else 0))
    ranked = sorted(range(len(tools)), key=lambda index: -scores[index])
    least = _LEAST * max(scores, default=0)
    return [tools[index] for index in ranked if scores[index] > least]


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_CAMEL.sub(" ", text))]
