"""Sentences that introduce an example, and those that announce a call."""

from __future__ import annotations

from support.each import each
from support.growth import LINEAR, growth
from toolsim.response.explanation import introduces_example


@each(
    "before",
    [
        "Here is an example of the JSON:\n\n",
        "Here's a general example of how to invoke the function:",
        "For example:\n",
        "For instance, one could write\n\n",
        "Examples:\n",
        "- Example call:\n",
        "It is JSON. An example.\n",
        "You can write a call, for example:",
        "Use the form that it expects, e.g.\n",
        "That is what such a call looks like:\n",
        "As an example, the call for Rome:\n",
        "Zum Beispiel:\n",
        "Voici un exemple :\n",
        "例如：\n",
    ],
)
def test_an_example(before: str) -> None:
    """However it is introduced."""
    assert introduces_example(before)
    assert introduces_example(f"First.\n\n{before}")
    assert not introduces_example(f"{before}\nI call it now:")


@each(
    "before",
    [
        "",
        "Let me see:\n",
        "The function call would look like this:\n",
        "I read the example config:\n",
        "I fetch https://example.com/example:\n",
        "It is in example.txt. I read it:\n",
        "The weather for Rome, and for example cities:\n",
        "I look for an example.com address:\n",
        "To perform a test on the sample:\n",
        "I use the format that you want:\n",
    ],
)
def test_an_announcement(before: str) -> None:
    """What models say before calls that they make."""
    assert not introduces_example(before)


def test_time_does_not_grow() -> None:
    """Only the end of a long text is inspected."""
    assert growth(lambda size: introduces_example("an example " * size), 30_000) < LINEAR
