"""A model's own markup in the arguments of a call that its server emits: what goes, and what is data."""

from __future__ import annotations

import pytest
from support.answers import tool
from support.growth import LINEAR, growth
from toolsim.response.leftover_markup import without_leftovers

READ = tool("read", path="string", limit="integer")


@pytest.mark.parametrize(
    ("arguments", "becomes"),
    [
        ('{"path</arg_key>": "a"}', '{"path":"a"}'),
        ('{"path</arg_key>": "a", "limit": 2.50}', '{"path":"a","limit":2.50}'),
        ('{"<arg_key>path": "a"}', '{"path":"a"}'),
        ('{"path": "a</arg_value>"}', '{"path":"a"}'),
        ('{"path": "<|\\"|>a \\"b\\"<|\\"|>"}', '{"path":"a \\"b\\""}'),
        ('{"path": "a</arg_value>b"}', None),
        ('{"path": "<parameter=x>a</parameter>"}', None),
        ('{"file</arg_key>": "a"}', None),
        ('{"path": "a", "path</arg_key>": "b"}', None),
        ('{"path": ["<|\\"|>a<|\\"|>"]}', None),
        ('{"path</arg_key>": "a"', None),
        ('{"path": "a"}', None),
        ('["</arg_key>"]', None),
    ],
)
def test_what_goes(arguments: str, becomes: str | None) -> None:
    """Markers at the ends of strings, and in keys that are declared without them; all else stays as it is."""
    assert without_leftovers(arguments, READ) == becomes


def test_long_arguments_take_linear_time() -> None:
    """Neither a long value of markers nor a long key takes longer than its length."""

    def read(size: int) -> None:
        without_leftovers('{"path": "' + "<arg_key></arg_value>" * size + '"}', READ)
        without_leftovers('{"path' + " " * size + "</arg_key>" * size + '": "a"}', READ)

    assert growth(read, 2_000) < LINEAR
