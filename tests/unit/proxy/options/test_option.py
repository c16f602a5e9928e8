from __future__ import annotations

from toolsimlib.proxy.options.option import Option


def test_names_and_types() -> None:
    """As mitmproxy expects them: a tuple is a sequence of strings."""
    assert Option("x", (), "").full_name == "toolsim_x"
    assert Option("x", 1, "").typespec is int
    assert str(Option("x", (), "").typespec) == "collections.abc.Sequence[str]"
