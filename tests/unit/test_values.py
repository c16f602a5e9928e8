"""Values that are frozen for the type checker only."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
from toolsimlib.values import quick


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    parts: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict, compare=False)
    seconds: float = field(default=0.5, kw_only=True)
    text: str = field(default="", init=False, repr=False, compare=False)


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    name: str
    parts: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict, compare=False)
    seconds: float = field(default=0.5, kw_only=True)
    text: str = field(default="", init=False, repr=False, compare=False)


@pytest.mark.parametrize(
    ("positional", "named"),
    [(("a",), {}), (("a", ("b",)), {"more": {"c": 1}}), ((), {"name": "a", "seconds": 1.0}), (("a", (), {}), {})],
)
def test_a_quick_value_is_made_as_a_frozen_one(positional, named):
    """The same arguments set the same fields, including all defaults."""
    one, other = Frozen(*positional, **named), Quick(*positional, **named)
    assert [getattr(one, field.name) for field in fields(one)] == [
        getattr(other, field.name) for field in fields(other)
    ]
    assert repr(other) == repr(one).replace("Frozen", "Quick")


@pytest.mark.parametrize(("positional", "named"), [((), {}), (("a", (), {}, 1.0), {}), (("a",), {"colour": 1})])
def test_a_quick_value_refuses_what_a_frozen_one_refuses(positional, named):
    """Arguments that are missing, too many or unknown are errors."""
    for cls in (Frozen, Quick):
        with pytest.raises(TypeError):
            cls(*positional, **named)


def test_a_quick_value_is_a_value():
    """It compares, hashes, matches, copies and pickles by its fields, and accepts no other attributes."""
    value = Quick("a", ("b",), {"c": 1})
    assert value == Quick("a", ("b",), {}) != Quick("a")
    assert hash(value) == hash(Quick("a", ("b",)))
    assert replace(value, name="x") == Quick("x", ("b",))
    copied = pickle.loads(pickle.dumps(value))
    assert (copied, copied.more) == (value, {"c": 1})
    assert Quick("a").more is not Quick("a").more
    match value:
        case Quick(name, parts):
            assert (name, parts) == ("a", ("b",))
    with pytest.raises(AttributeError):
        value.colour = "red"
