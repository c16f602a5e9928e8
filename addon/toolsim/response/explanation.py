"""Whether the words before an untagged call introduce an example, so that the call is shown and not made.

    Here is an example of the JSON:         text: it explains
    The function call would look like this: a call: so do models announce what they do

Only the last sentence before the call decides. These are the words with which models introduce examples: 10,456
recorded answers have something in the shape of a call after a sentence, and no call that was right follows one of them.
"""

from __future__ import annotations

import re

MAX_SENTENCE = 300
"""How many characters before a call are inspected."""

_LAST_SENTENCE = re.compile(r"(?:[^\n.!?]|[.!?](?!\s))*+[.!?]?\s*\Z")
_EXAMPLE = re.compile(
    r"""
    ^\W* (?: for \s (?:example|instance) | examples? (?:\s [\w-]+){0,3} \s? : )
    | \b (?: an? | another | one | some ) \s (?:[\w-]+ \s){0,2} examples? \b (?! \s [\w-]+ \s? : ) (?! [-/\w] | \.\w )
    | \b (?: as \s an \s example | looks \s like )
    | \b (?: for \s (?:example|instance) | e\.g\.) \W* $
    | \b (?: beispiel | exemple | ejemplo | esempio | exemplo | voorbeeld ) \b
    | 例如 | 示例 | 例子 | 例えば
    """,
    re.IGNORECASE | re.VERBOSE,
)


def introduces_example(before: str) -> bool:
    """Return whether the last sentence of the text ``before`` a call introduces an example."""
    sentence = _LAST_SENTENCE.search(before[-MAX_SENTENCE:].rstrip())
    return sentence is not None and _EXAMPLE.search(sentence[0]) is not None
