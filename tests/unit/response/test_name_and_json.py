from __future__ import annotations

import pytest
from toolsim.response.name_and_json import named_json_reader, read_mistral
from toolsim.response.parsed_call import Json

read = named_json_reader(r"(?:<c>)?([\w.:]+)<s>", "</c>")


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('<c>f<s>{"a":1}</c>', [("f", '{"a":1}')]),
        ('<c>f<s>{"a":1}</c>\n<c>g<s>{}</c>', [("f", '{"a":1}'), ("g", "{}")]),
        ("functions.f.g:12<s>{}", [("f.g", "{}")]),
        ("<c>f<s>\n```json\n{}\n```</c>", [("f", "{}")]),
        ("<c>f<s>{}</c> x", [("f", "{}"), (None, None)]),
        ("x", [(None, None)]),
    ],
)
def test_named_json_is_read(body: str, calls: list[tuple[str | None, str | None]]) -> None:
    """If JSON follows the name of a tool, it is returned verbatim as the arguments. A name followed by any other text
    is a broken call.
    """
    got = read(body)
    assert [(call.name, call.given.source if isinstance(call.given, Json) else None) for call in got] == calls
    assert [call.broken for call in got] == [arguments is None for _, arguments in calls]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', ["f", "g"]),
        ('{"name": "f", "arguments": {}}', ["f"]),
        ("f{}", ["f"]),
        ("f[ARGS]{}", ["f"]),
        ("f[CALL_ID]x9[ARGS]{}", ["f"]),
        ("f", [None]),
    ],
)
def test_mistral_calls_are_read(body: str, names: list[str | None]) -> None:
    """Mistral calls are parsed in every format that Mistral's models have used."""
    assert [call.name for call in read_mistral(body)] == names
