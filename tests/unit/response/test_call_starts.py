from __future__ import annotations

from support.each import each
from toolsim.response.call_starts import find_call_start

NAMES = ["add", "add_all", "get.x", "get_x"]


@each(
    ("text", "opening"),
    [
        ("{", "json"),
        ("[", "more"),
        ("[{", "json"),
        ("[func", "more"),
        ("[function_call", "more"),
        ("[function_call ", "record"),
        ("[function_call_output", None),
        ("[function_call]", None),
        ("[fun with tools]", "json"),
        ("`", "more"),
        ("`x", None),
        ("```", "more"),
        ("```j", "fence"),
        ("````\n", "fence"),
        ("~~~\n", "code"),
        ("~~ ", None),
        ("a", "more"),
        ("add", "more"),
        ("add_", "more"),
        ("ad(", None),
        ("add(", "syntax"),
        ("add_all(", "syntax"),
        ("get.x(", "syntax"),
        ("add{", "braces"),
        ("add[", "more"),
        ("add[ARGS]{", "braces"),
        ("add[CALL_ID]a1[ARGS]{", "braces"),
        ("add[CALL_ID]a1[AR", "more"),
        ("add[0]", None),
        ("add:0{", "braces"),
        ("functions.add:12{", "braces"),
        ("functions.", "more"),
        ("functions.b", None),
        ("functions.add(", "syntax"),
        ("functions.b(", None),
        ("tools.a", None),
        ("tools are", None),
        ("Add.All(", "syntax"),
        ("add-all(", None),
        ("functions.Add", "more"),
        ("get_x(", "syntax"),
        ("get_y(", None),
        ("ca", "more"),
        ("call:add{", "gemma"),
        ("call:b{", None),
        ("call it", None),
        ("[add(", "list"),
        ("[ add(", "list"),
        ("[add", "more"),
        ("[add]", "json"),
        ("[ ", "more"),
        ("[b(", "json"),
        ("add ", None),
        ("addition", None),
        ("b", None),
        ("1", None),
        (")", None),
    ],
)
def test_openings_are_recognized_early(text: str, opening: str | None) -> None:
    """The beginning of an untagged call is recognized from as few characters as possible. Words that are not tool names
    are never held back.
    """
    assert find_call_start(text, 0, NAMES, final=False) == opening
    assert find_call_start("x " + text, 2, NAMES, final=False) == opening
    assert find_call_start(text, 0, NAMES, final=True) != "more"
