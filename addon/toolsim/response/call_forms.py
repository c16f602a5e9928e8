"""The forms other than ours in which models write a call: one row per form.

A model that was tuned for tools falls back to its own form whatever the prompt says, and its own marks then appear in
the text. A row says how its blocks open and close, how a body begins, what delimits a value in it, and which function
reads it. Bodies of rows without tags stand behind our own tags, in place of JSON; a form with both has two rows.

| form        | body, with its tags where it has any                                                       |
|-------------|--------------------------------------------------------------------------------------------|
| JSON        | ``{"name": …, "arguments": …}``                                                            |
| use_tool    | ``<name>f</name><k>v</k>``                                                                 |
| Qwen3-Coder | ``<function=f><parameter=k>v</parameter></function>``, also without our tag                |
| Llama 3     | ``<function=f>{…}</function>``, ``<|python_tag|>{"name": …}; {"name": …}``                 |
| GLM 4.5     | ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, right behind the tag                    |
| pythonic    | ``[f(k=v), g(k=v)]``, also in ``<|python_start|>`` (Llama 4), ``<|tool_call_start|>`` (LFM2) |
| Granite     | ``<|tool_call|>[{"name": …}]``, from Phi-4 followed by ``<|/tool_call|>``; of 20B           |
|             | ``<function_call> {"name": …} <function_call> {"name": …}``                                |
| Gemma 4     | ``<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>``                                          |
| Mistral     | ``[TOOL_CALLS]`` and ``[{"name": …}]``, ``f{…}``, ``f[ARGS]{…}`` or ``f[CALL_ID]x[ARGS]{…}`` |
| DeepSeek V3 | ``<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f``, JSON in a fence, …       |
| DSML        | ``<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="k">v…``               |
| MiniMax M2  | ``<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke>…``        |
| Kimi K2     | ``<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}`` |
| gpt-oss     | ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>``           |

Four grammars cover all of them: JSON (``named_json``), tagged pairs, Gemma's braces, and Python's calls
(``call_syntax``). A new form is one row and its cases in ``tests/cases/call_forms.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from toolsim.response.call_syntax import read_calls
from toolsim.response.gemma_braces import HEAD, QUOTE, read_gemma
from toolsim.response.named_json import (
    GPT_OSS_HEAD,
    named_json_reader,
    read_bare_json,
    read_gpt_oss,
    read_mistral,
)
from toolsim.response.tagged_pairs import NAME, read_elements_calls, read_glm
from toolsim.response.written import Written, read_xml


@dataclass(frozen=True, slots=True)
class CallForm:
    """One row.

    ``begins`` matches how a body begins, ``may_begin`` what may still become that. ``tags`` are its own, opening and
    closing ("" = the last bracket of its JSON closes it). ``value``: what opens a value and what closes it; in between
    every tag is data. ``whole``: the end of a body that can lack only its closing tag. ``is_json``: the body is JSON
    from the end of ``begins`` on, and a tag in its strings is data. ``behind_tag``: the body must follow its tag
    immediately; ``behind_ours``: it may stand behind our own tags. ``bare`` matches a body that is a name and nothing
    else: as anybody may write that, such a block has to stand alone.
    """

    name: str
    begins: re.Pattern[str]
    may_begin: re.Pattern[str]
    read: Callable[[str], list[Written]]
    tags: tuple[tuple[str, str], ...] = ()
    value: tuple[str, str] = ("", "")
    whole: str = ""
    is_json: bool = False
    behind_tag: bool = False
    behind_ours: bool = False
    bare: re.Pattern[str] | None = None


def _prefixes(word: str) -> str:
    """Return a pattern that matches any prefix of ``word``, the empty one too."""
    pattern = ""
    for char in reversed(word):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return pattern


def _row(name: str, word: str, read: Callable[[str], list[Written]], **fields: object) -> CallForm:
    """Return a row whose body begins with ``word``."""
    return CallForm(name, re.compile(re.escape(word)), re.compile(_prefixes(word) + r"\Z"), read, **fields)  # type: ignore[arg-type]


def _read_use_tool(body: str) -> list[Written]:
    return [read_xml(body)]


def _read_open_function(body: str) -> list[Written]:
    """Read what stands between ``<function=`` and ``</function>``, which also ends a value that lacks its own end."""
    calls = read_elements_calls(f"<function={body}")
    return read_elements_calls(f"<function={body}</function>") if calls[-1].broken else calls


def _invocations(name: str, mark: str, *blocks: str) -> CallForm:
    """Return the row of a form in Anthropic's old elements, in any of ``blocks``; ``mark`` precedes each name."""
    return _row(
        name,
        f'<{mark}invoke name="',
        read_elements_calls,
        tags=tuple((f"<{mark}{block}>", f"</{mark}{block}>") for block in blocks),
        value=(f"<{mark}parameter ", f"</{mark}parameter>"),
        whole=f"</{mark}invoke>",
    )


_SEPARATOR = "<｜tool▁sep｜>"
_DEEPSEEK_HEAD = rf"(?:<｜tool▁call▁begin｜>\s*)?(?:function{_SEPARATOR})?({NAME})(?:{_SEPARATOR}|(?=\s*\n))"
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_HEAD = rf"(?:<\|tool_call_begin\|>\s*)?({NAME})\s{{0,8}}{re.escape(_KIMI_ARGUMENTS)}"
# Where gpt-oss names the tool: behind the role, or behind the channel.
_GPT_OSS_PLACES = (
    "<|start|>assistant",
    "<|start|>assistant<|channel|>commentary",
    "<|start|>assistant<|channel|>analysis",
    "<|channel|>commentary",
    "<|channel|>analysis",
)
_PYTHON_NAME = r"[A-Za-z_][\w.]{0,127}"

_MEMBER = r"[A-Za-z_]\w{0,31}\s{0,8}"
_KEY = r"[\w.$-]{1,64}"
_MANY = r"\s{0,1024}"

JSON = CallForm(
    "JSON",
    re.compile(rf"(?=\{{{_MANY}(?:[\"'}}]|{_MEMBER}:)|\[{_MANY}[{{\]])"),
    re.compile(rf"(?:\{{{_MANY}(?:{_MEMBER})?|\[{_MANY})\Z"),
    read_bare_json,
    is_json=True,
    behind_ours=True,
)
"""Our own form, as one more row of the table."""

CALL_FORMS = (
    JSON,
    _row("use_tool", "<name>", _read_use_tool, value=(r"<([^<>/\s][^<>/]{0,255})>", "</{}>"), behind_ours=True),
    CallForm(
        "Qwen3-Coder",
        re.compile(rf"<function={NAME}>"),
        re.compile(rf"(?:<function={NAME}|{_prefixes('<function=')})\Z"),
        read_elements_calls,
        value=("<parameter=", "</parameter>"),
        whole="</function>",
        behind_ours=True,
    ),
    CallForm(
        "Qwen3-Coder",  # And Llama 3's <function=f>{…}</function>.
        re.compile(rf"{NAME}>\s{{0,64}}(?:<parameter=|</function>|\{{)"),
        re.compile(rf"{NAME}(?:>\s{{0,64}}(?:{_prefixes('<parameter=')}|{_prefixes('</function>')}))?\Z"),
        _read_open_function,
        tags=(("<function=", "</function>"),),
        value=("<parameter=", "</parameter>"),
        whole="</function>",
        behind_tag=True,
    ),
    CallForm(
        "Llama 3", re.compile(r"(?=\{)"), re.compile(r"(?!)"), read_bare_json, (("<|python_tag|>", ""),), is_json=True
    ),
    CallForm(
        "Granite",
        re.compile(rf"(?=\[{_MANY}\{{|\{{{_MANY}\")"),
        re.compile(rf"[\[{{]{_MANY}\Z"),
        read_bare_json,
        tags=(("<|tool_call|>", "<|/tool_call|>"), ("<function_call>", "")),
        is_json=True,
    ),
    CallForm(
        "GLM 4.5",
        re.compile(rf"{NAME}\s{{0,8}}(?:<arg_key>|<tool_call>{_KEY}</arg_key>|(?=</))"),
        re.compile(
            rf"{NAME}\s{{0,8}}(?:{_prefixes('<arg_key>')}|<?|{_prefixes('<tool_call>')}"
            rf"|<tool_call>{_KEY}{_prefixes('</arg_key>')})\Z"
        ),
        read_glm,
        value=("<arg_value>", "</arg_value>"),
        bare=re.compile(rf"{NAME}\s*"),
        behind_tag=True,
        behind_ours=True,
    ),
    CallForm(
        "pythonic",
        re.compile(rf"\[?\s{{0,8}}{_PYTHON_NAME}\("),
        re.compile(rf"\[?\s{{0,8}}(?:{_PYTHON_NAME})?\Z"),
        read_calls,
        tags=(("<|python_start|>", "<|python_end|>"), ("<|tool_call_start|>", "<|tool_call_end|>")),
    ),
    CallForm(
        "Gemma 4",
        re.compile(rf"{HEAD}[{{(]"),
        re.compile(rf"(?:{_prefixes(':call:')}|:?(?:call:)?\s{{0,8}}(?:{NAME}\s{{0,8}})?)\Z"),
        read_gemma,
        tags=(("<|tool_call>", "<tool_call|>"),),
        value=(re.escape(QUOTE), QUOTE),
    ),
    CallForm(
        "Mistral",
        re.compile(
            rf"{NAME}(?:\[CALL_ID\][\w-]{{1,64}})?(?:\[ARGS\])?\s{{0,8}}(?=\{{)|(?=\[\s{{0,64}}\{{|\{{\s{{0,64}}\")"
        ),
        re.compile(rf"(?:{NAME}(?:\[[A-Z_]{{0,8}}\]?[\w-]{{0,64}}){{0,2}}\s{{0,8}}|[\[{{]\s{{0,64}})\Z"),
        read_mistral,
        tags=(("[TOOL_CALLS]", ""),),
        is_json=True,
    ),
    CallForm(
        "DeepSeek V3",
        re.compile(rf"<｜tool▁call▁begin｜>|{NAME}{_SEPARATOR}"),
        re.compile(rf"(?:{_prefixes('<｜tool▁call▁begin｜>')}|{NAME}{_prefixes(_SEPARATOR)})\Z"),
        named_json_reader(_DEEPSEEK_HEAD, r"<｜tool▁call▁end｜>|\Z"),
        whole="<｜tool▁call▁end｜>",
        tags=(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")),
    ),
    _invocations("DSML", "｜DSML｜", "function_calls", "tool_calls"),
    _invocations("MiniMax M2", "", "minimax:tool_call", "function_calls"),
    CallForm(
        "Kimi K2",
        re.compile(rf"<\|tool_call_begin\|>|{NAME}\s{{0,8}}{re.escape(_KIMI_ARGUMENTS)}"),
        re.compile(rf"(?:{_prefixes('<|tool_call_begin|>')}|{NAME}\s{{0,8}}{_prefixes(_KIMI_ARGUMENTS)})\Z"),
        named_json_reader(_KIMI_HEAD, r"<\|tool_call_end\|>|\Z"),
        whole="<|tool_call_end|>",
        tags=(
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ("<|tool_call_begin|>", "<|tool_call_end|>"),
        ),
    ),
    CallForm(
        "gpt-oss",
        re.compile(rf"{GPT_OSS_HEAD}(?=\s{{0,64}}\{{)"),
        re.compile(rf"(?:{NAME}[\s\w<|>]{{0,64}})?\Z"),
        read_gpt_oss,
        tags=tuple((f"{place} to=", "<|call|>") for place in _GPT_OSS_PLACES),
        is_json=True,
        behind_tag=True,
    ),
)

FOREIGN = {opening: closing for row in CALL_FORMS for opening, closing in row.tags}
"""The forms' own tags: closing tag by opening tag."""

_OURS = tuple(row for row in CALL_FORMS if row.behind_ours)
_BY_TAG = {
    opening: tuple(row for row in CALL_FORMS if (opening, closing) in row.tags) for opening, closing in FOREIGN.items()
}


def row_at(text: str, at: int, opening: str, *, behind_tag: bool, final: bool) -> CallForm | bool | None:
    """Return the row whose body begins at ``at`` behind that tag, False for none, None if more text is needed.

    ``behind_tag``: nothing stands between the tag and ``at``. ``final``: no more text will come.
    """
    rows = [row for row in _BY_TAG.get(opening, _OURS) if behind_tag or not row.behind_tag]
    for row in rows:
        if row.begins.match(text, at):
            return row
    return None if not final and any(row.may_begin.match(text, at) for row in rows) else False


def read_form(opening: str, body: str) -> list[Written]:
    """Return the calls of a body that began as a form's does; never empty."""
    start = len(body) - len(body.lstrip())
    # A body may be empty up to its closing tag.
    row = row_at(body + FOREIGN.get(opening, "</"), start, opening, behind_tag=not start, final=True)
    return row.read(body) if isinstance(row, CallForm) else _read_use_tool(body)


def reads_cleanly(row: CallForm, opening: str, body: str) -> bool:
    """Return whether a body of that row is complete though no tag closes it: its reader has nothing to mend."""
    if not body.rstrip().endswith(row.whole):
        return False
    return all(call.is_clean for call in read_form(opening, body))
