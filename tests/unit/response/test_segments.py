from __future__ import annotations

from typing import Any

import pytest
from toolsim.response.segments import Block, characters_within, joined, split_end, utf8_length


@pytest.mark.parametrize("closing", ["", "</t>", "</t", "</function>"])
def test_block_consists_of_its_parts(closing: str) -> None:
    """The raw text of a tagged block consists of its opening tag, its body and its closing tag, exactly as the model
    wrote them.
    """
    assert Block("json", "<t>", ' {"a":1}', closing).raw == f'<t> {{"a":1}}{closing}'


@pytest.mark.parametrize("text", ["", "abc", "aé🐢b"])
def test_characters_within_a_number_of_bytes(text: str) -> None:
    """``characters_within`` returns the number of complete characters that fit into the given number of bytes."""
    for size in range(12):
        number = characters_within(text, size)
        assert utf8_length(text[:number]) <= size
        assert number == len(text) or utf8_length(text[: number + 1]) > size


BLOCK = Block("json", "<t>", "{}", "</t>")


@pytest.mark.parametrize(
    ("pieces", "size", "before", "end"),
    [
        (["ab", "cd"], 3, ["a"], ["b", "cd"]),
        (["ab", "cd"], 2, ["ab"], ["cd"]),
        ([BLOCK, "ab"], 2, [BLOCK], ["ab"]),
        ([BLOCK, "ab"], 1, [BLOCK, "a"], ["b"]),
        (["ab", "cd"], 0, [], ["ab", "cd"]),
        (["ab"], 3, [], ["ab"]),
        (["ab", BLOCK], 1, [], ["ab", BLOCK]),
        ([], 1, [], []),
    ],
)
def test_prose_is_split_off_the_end(pieces: list[str | Block], size: int, before: list[Any], end: list[Any]) -> None:
    """The given number of characters is split off from the end of the segments, provided that these characters are all
    prose.
    """
    assert split_end(pieces, size) == (before, end)


def test_adjacent_prose_is_joined() -> None:
    """Adjacent texts are joined, and blocks keep their positions."""
    block = Block("json", "<t>", "{}", "</t>")
    assert list(joined(["a", "b", block, block, "c", "d"])) == ["ab", block, block, "cd"]
    assert list(joined([])) == []
