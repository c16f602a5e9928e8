"""Call forms: the bodies of calls that models write, and the markers that model families put around them.

Models that were trained on tool calls sometimes ignore the prompt and write calls in the form of their training, with
the markers of their family. The table lists the known bodies. Markers of families that are not in the table can enclose
any of these bodies:

| form        | body, including the markers that belong to it                                              |
|-------------|--------------------------------------------------------------------------------------------|
| JSON        | ``{"name": …, "arguments": …}``, ``[{…}, …]``                                              |
| use_tool    | ``<name>f</name><k>v</k>``                                                                 |
| Qwen3-Coder | ``<function=f><parameter=k>v</parameter></function>``, also without a marker               |
| MiniCPM5    | ``<function name="f"><param name="k">v</param></function>``, also without a marker         |
| Llama 3     | ``<function=f>{…}</function>``, ``<|python_tag|>{"name": …}; {"name": …}``                 |
| GLM 4.5     | ``f<arg_key>k</arg_key><arg_value>v</arg_value>``, or ``f`` alone                          |
| LongCat     | ``f<longcat_arg_key>k</longcat_arg_key><longcat_arg_value>v</longcat_arg_value>``          |
| named JSON  | ``f {…}``                                                                                  |
| pythonic    | ``[f(k=v), g(k=v)]``, ``f(k=v)``                                                           |
| Granite     | ``<function_call> {"name": …} <function_call> {"name": …}``                                |
| Gemma 4     | ``call:f{k:<|"|>v<|"|>}``                                                                  |
| FunctionGemma | ``call:f{k:<escape>v<escape>}``                                                        |
| Mistral     | ``[TOOL_CALLS]`` and ``[{"name": …}]``, ``f{…}``, ``f[ARGS]{…}`` or ``f[CALL_ID]x[ARGS]{…}`` |
| DeepSeek V3 | ``<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f``, JSON in a fence, …       |
| DeepSeek V4 | ``<tool_call id="…" name="f">{…}</tool_call>``                                            |
| DSML        | ``<｜DSML｜invoke name="f"><｜DSML｜parameter name="k">v…``, also without a marker             |
| MiniMax M2  | ``<invoke name="f"><parameter name="k">v</parameter></invoke>…``                           |
| MiniMax M3  | ``]<]minimax[>[<invoke name="f">]<]minimax[>[<k>v]<]minimax[>[</k>…``                      |
| Kimi K2     | ``<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}`` |
| gpt-oss     | ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>``           |

To support a new family whose markers enclose one of these bodies, add one line to ``MARKERS``; its test cases are in
``tests/cases/call_forms.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from toolsim.core.custom_forms import Body, CustomForm
from toolsim.response.call_syntax import read_calls
from toolsim.response.gemma_braces import FUNCTION_GEMMA_QUOTE, HEAD, QUOTE, read_gemma
from toolsim.response.misspelled import spelled, spellings_of
from toolsim.response.name_and_json import (
    ARGS,
    GPT_OSS_HEAD,
    GPT_OSS_SLIPS,
    named_json_reader,
    read_bare_json,
    read_gpt_oss,
    read_mistral,
    read_named_json,
)
from toolsim.response.parsed_call import ParsedCall, read_xml
from toolsim.response.partial import match_at
from toolsim.response.tagged_pairs import HEAD_END, M3_MARK, NAME, read_elements_calls, read_glm, read_longcat, read_m3


@dataclass(frozen=True, slots=True)
class CallForm:
    """One form of a call's body."""

    name: str
    begins: str
    """A pattern for the beginning of the body."""
    read: Callable[[str], list[ParsedCall]]
    tags: tuple[tuple[str, str], ...] = ()
    """The opening and closing markers that are used only with this body. If the closing marker is "", the body ends
    with the last bracket of its JSON.
    """
    value: tuple[str, str] = ("", "")
    """The delimiters of a value, such as ``<parameter=`` and ``</parameter>``. Markers between them are data."""
    whole: str = ""
    """The text that must end a body without a closing marker, or "" if any text can end it."""
    is_json: bool = False
    """Whether JSON follows ``begins``. If so, markers in strings are data."""
    behind_tag: bool = False
    """Whether the body must directly follow its opening marker, or begin on a new line."""
    after_own_tag: bool = False
    """Whether the body can follow toolsim's own tag even if no other forms are recognized."""
    anywhere: bool = False
    """Whether the body can follow any marker, including the markers of other families."""
    alone: re.Pattern[str] | None = None
    """A pattern for bodies that can also occur in a sentence about toolsim's markers, such as a bare name. A block with
    such a body counts as a call only if the block stands alone. None if there are no such bodies.
    """
    skips_beginning: bool = False
    """Whether markers within the match of ``begins`` are ignored. This is necessary if a model may write another
    opening marker there.
    """
    again: str = ""
    """A pattern for another call directly after a body that has no closing marker, or "" if no call can follow."""
    misspelled: Callable[[], str] | None = None
    """A function that returns a pattern for misspelled beginnings. The pattern is tried only if no form's ``begins``
    matches. None if misspelled beginnings are not recognized.
    """
    slip_of: str = ""
    """The correct spelling of the marker that ``misspelled`` matches, or "" if there is no single marker."""

    def may_slip(self, text: str, at: int) -> bool:
        """Return whether the body at ``at`` might begin with a misspelled marker.

        This quick check often avoids the slow compilation of the pattern from ``misspelled``.
        """
        return self.misspelled is not None and (not self.slip_of or spellings_of(self.slip_of).may_stand(text, at))


def _row(name: str, begins: str, read: Callable[[str], list[ParsedCall]], **fields: object) -> CallForm:
    return CallForm(name, begins, read, **fields)  # type: ignore[arg-type]


def _read_use_tool(body: str) -> list[ParsedCall]:
    return [read_xml(body)]


def _read_open_elements(start: str, end: str) -> Callable[[str], list[ParsedCall]]:
    """Return a reader for the rest of a call whose opening tag begins with ``start``. The call ends with the tag
    ``end``.

    If a value lacks its closing tag, ``end`` also ends the value.
    """

    def read(body: str) -> list[ParsedCall]:
        calls = read_elements_calls(f"{start}{body}")
        return read_elements_calls(f"{start}{body}{end}") if calls[-1].broken else calls

    return read


def _invocations(name: str, mark: str, *blocks: str) -> tuple[CallForm, ...]:
    """Return the call forms for calls in Anthropic's legacy elements (``<invoke name="f">``) inside any of the elements
    ``blocks``.

    ``mark``: text before the name of each element, such as ``｜DSML｜``. Calls with such a mark do not need to be
    enclosed in a block, because people never type these marks.
    """
    value = (f"<{re.escape(mark)}parameter ", f"</{mark}parameter>")
    end = f"</{mark}invoke>"
    opening = f'<{mark}invoke name="'
    blocks_of = tuple((f"<{mark}{block}>", f"</{mark}{block}>") for block in blocks)
    inside = _row(
        name,
        re.escape(opening),
        read_elements_calls,
        tags=blocks_of,
        value=value,
        whole=end,
        anywhere=True,
        misspelled=lambda: spelled(opening, "<", '"'),
        slip_of=opening,
    )
    if not mark:
        return (inside,)
    fields: dict[str, object] = {"tags": ((opening, end),), "value": value, "whole": end, "behind_tag": True}
    return inside, _row(name, rf'{NAME}"\s{{0,8}}>', _read_open_elements(opening, end), **fields)


_SEPARATOR = "<｜tool▁sep｜>"
_DEEPSEEK_HEAD = (
    rf"(?:<｜tool▁call▁begin｜>\s*)*(?:function\s*(?:{_SEPARATOR}\s*)+)?({NAME})"
    rf"(?:(?:\s*{_SEPARATOR})+|(?=\s*\n))"
)
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_HEAD = rf"(?:<\|tool_call_begin\|>\s*)*({NAME})(?:\s{{0,8}}{re.escape(_KIMI_ARGUMENTS)})+"
# gpt-oss writes the tool's name after the role or after the channel.
_GPT_OSS_PLACES = (
    "<|start|>assistant",
    "<|start|>assistant<|channel|>commentary",
    "<|start|>assistant<|channel|>analysis",
    "<|channel|>commentary",
    "<|channel|>analysis",
)
_PYTHON_NAME = r"[A-Za-z_][\w.]{0,127}"

_M3_INVOKE = f'{M3_MARK}<invoke name="'
_ATTRIBUTES = r'(?:id="[^"<>]{0,128}"\s{0,4})?'
_MEMBER = r"[A-Za-z_]\w{0,31}\s{0,8}"
_KEY = r"[\w.$-]{1,64}"
_MANY = r"\s{0,1024}"
_ANY = re.compile(r".*", re.DOTALL)

JSON = _row(
    "JSON",
    rf"(?=\{{{_MANY}(?:[\"'}}]|{_MEMBER}:)|\[{_MANY}[{{\]])",
    read_bare_json,
    is_json=True,
    after_own_tag=True,
    anywhere=True,
)
"""The form of toolsim's own calls."""

_DSML = ("｜DSML｜", "｜｜DSML｜｜", "‖DSML‖", "‖‖DSML‖‖", "|DSML|", "||DSML||", "｜DSML｜ ", "｜｜DSML｜｜ ")
"""The text that DeepSeek writes before the name of each element, in the spellings of the models and of servers that
replace the vertical bars.
"""

CALL_FORMS = (
    JSON,
    _row(
        "use_tool",
        "<name>",
        _read_use_tool,
        misspelled=lambda: spelled("<name>", "<"),
        slip_of="<name>",
        value=(r"<([^<>/\s][^<>/]{0,255})>", "</{}>"),
        after_own_tag=True,
        anywhere=True,
    ),
    _row(
        "Qwen3-Coder",
        rf"<function=[\"']?{NAME}[\"']?{HEAD_END}",
        read_elements_calls,
        misspelled=lambda: rf"{spelled('<function=', '<', '=')}{NAME}{HEAD_END}",
        slip_of="<function=",
        value=("<parameter=", "</parameter>"),
        whole="</function>",
        after_own_tag=True,
        anywhere=True,
    ),
    _row(
        "Qwen3-Coder",  # This form also covers Llama 3's <function=f>{…}</function>.
        rf"{NAME}(?:>\s{{0,64}}(?:<function={NAME}>\s{{0,64}})?|\s{{0,8}}[=,(]?(?=[<{{]))(?=<parameter=|</function>|\{{)",
        _read_open_elements("<function=", "</function>"),
        misspelled=lambda: rf"{NAME}>\s{{0,64}}(?={spelled('<parameter=', '<', '=')})",
        skips_beginning=True,
        tags=(("<function=", "</function>"),),
        value=("<parameter=", "</parameter>"),
        whole="</function>",
        behind_tag=True,
    ),
    *(
        _row(
            "MiniCPM5",
            rf"{NAME}{quote}{HEAD_END}(?:\s{{0,64}}<function name={quote}{NAME}{quote}{HEAD_END})?"
            r"(?=\s{0,64}(?:[^\s<]|<[^f]))",
            _read_open_elements(f"<function name={quote}", "</function>"),
            skips_beginning=True,
            tags=((f"<function name={quote}", "</function>"),),
            value=(r"<(param(?:eter)?) name=", "</{}>"),
            whole="</function>",
            behind_tag=True,
        )
        for quote in "\"'"
    ),
    _row(
        "MiniCPM5",
        rf"<function name=[\"']{NAME}[\"']{HEAD_END}",
        read_elements_calls,
        value=(r"<(param(?:eter)?) name=", "</{}>"),
        whole="</function>",
        anywhere=True,
    ),
    _row("Llama 3", r"(?=\{)", read_bare_json, tags=(("<|python_tag|>", ""),), is_json=True),
    _row(
        "Granite",
        rf"(?=\[{_MANY}\{{|\{{{_MANY}\")",
        read_bare_json,
        tags=(("<function_call>", ""),),
        is_json=True,
    ),
    _row(
        "GLM 4.5",
        rf"{NAME}\s{{0,8}}(?:<arg_key>|(?:<tool_call>|(?<=\n)){_KEY}</arg_key>|(?=</))",
        read_glm,
        misspelled=lambda: rf"{NAME}\s{{0,8}}{spelled('<arg_key>')}{_KEY}</arg_key>",
        value=("<arg_value>", "</arg_value>"),
        alone=re.compile(rf"\s*{NAME}\s*"),
        skips_beginning=True,
        behind_tag=True,
        after_own_tag=True,
        anywhere=True,
    ),
    _row(
        "LongCat",
        rf"{NAME}\s{{0,8}}<longcat_arg_key>",
        read_longcat,
        misspelled=lambda: rf"{NAME}\s{{0,8}}{spelled('<longcat_arg_key>', '<')}",
        tags=(("<longcat_tool_call>", "</longcat_tool_call>"),),
        value=("<longcat_arg_value>", "</longcat_arg_value>"),
        behind_tag=True,
    ),
    _row(
        "Gemma 4",
        rf"{HEAD}[{{(]",
        read_gemma,
        tags=(("<|tool_call>", "<tool_call|>"),),
        value=(re.escape(QUOTE), QUOTE),
    ),
    _row(
        "FunctionGemma",
        rf"{HEAD}[{{(]",
        read_gemma,
        tags=(("<start_function_call>", "<end_function_call>"),),
        value=(FUNCTION_GEMMA_QUOTE, FUNCTION_GEMMA_QUOTE),
    ),
    _row(
        "named JSON",
        rf"{NAME}\s{{0,8}}(?=\{{\s{{0,64}}[\"'}}])",
        read_named_json,
        is_json=True,
        behind_tag=True,
        anywhere=True,
        alone=_ANY,
    ),
    _row(
        "Gemma 4",
        rf":?call:\s{{0,8}}{NAME}\s{{0,8}}[{{(]",
        read_gemma,
        value=(re.escape(QUOTE), QUOTE),
        behind_tag=True,
        anywhere=True,
        alone=_ANY,
    ),
    _row("pythonic", rf"\[?\s{{0,8}}{_PYTHON_NAME}\(", read_calls, behind_tag=True, anywhere=True, alone=_ANY),
    _row(
        "Mistral",
        rf"{NAME}(?:\s{{0,8}}\[CALL_ID\][\w-]{{1,64}})?{ARGS}\s{{0,8}}(?=\{{)|(?=\[\s{{0,64}}\{{|\{{\s{{0,64}}\")",
        read_mistral,
        tags=(("[TOOL_CALLS]", ""),),
        is_json=True,
        again=rf"{NAME}(?:\[CALL_ID\][\w-]{{1,64}})?\[ARGS\]\s{{0,8}}(?=\{{)",
    ),
    _row(
        "DeepSeek V3",
        rf"<｜tool▁call▁begin｜>|{NAME}\s{{0,8}}{_SEPARATOR}",
        named_json_reader(_DEEPSEEK_HEAD, "<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>", _SEPARATOR),
        misspelled=lambda: rf"{spelled('<｜tool▁call▁begin｜>', '<')}{NAME}\s{{0,8}}{_SEPARATOR}",
        slip_of="<｜tool▁call▁begin｜>",
        whole="<｜tool▁call▁end｜>",
        tags=(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")),
    ),
    _row(
        "DeepSeek V4",
        rf'{_ATTRIBUTES}name="{NAME}"\s{{0,4}}{_ATTRIBUTES}>\s{{0,64}}(?=\{{)',
        named_json_reader(rf'{_ATTRIBUTES}name="({NAME})"\s{{0,4}}{_ATTRIBUTES}>\s*(?=\{{)'),
        tags=(("<tool_call ", "</tool_call>"),),
        is_json=True,
        behind_tag=True,
    ),
    *(row for mark in _DSML for row in _invocations("DSML", mark, "function_calls", "tool_calls", "calls")),
    *_invocations("MiniMax M2", "", "minimax:tool_call", "function_calls"),
    _row(
        "MiniMax M3",
        rf"{NAME}\"\s{{0,8}}>",
        lambda body: read_m3(f"{_M3_INVOKE}{body}"),
        tags=((_M3_INVOKE, f"{M3_MARK}</invoke>"),),
        value=(rf"{re.escape(M3_MARK)}<([^<>/\s]{{1,256}})>", f"{M3_MARK}</{{}}>"),
        whole=f"{M3_MARK}</invoke>",
        behind_tag=True,
    ),
    _row(
        "MiniMax M3",
        re.escape(_M3_INVOKE),
        read_m3,
        tags=((f"{M3_MARK}<tool_call>", f"{M3_MARK}</tool_call>"),),
        value=(rf"{re.escape(M3_MARK)}<([^<>/\s]{{1,256}})>", f"{M3_MARK}</{{}}>"),
        whole=f"{M3_MARK}</invoke>",
    ),
    _row(
        "Kimi K2",
        rf"<\|tool_call_begin\|>|{NAME}\s{{0,8}}{re.escape(_KIMI_ARGUMENTS)}",
        named_json_reader(_KIMI_HEAD, "<|tool_call_end|>", "<|tool_call_begin|>", _KIMI_ARGUMENTS),
        misspelled=lambda: rf"{spelled('<|tool_call_begin|>', '<')}{NAME}\s{{0,8}}{re.escape(_KIMI_ARGUMENTS)}",
        slip_of="<|tool_call_begin|>",
        whole="<|tool_call_end|>",
        tags=(
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
            ("<|tool_call_begin|>", "<|tool_call_end|>"),
        ),
    ),
    _row(
        "gpt-oss",
        rf"{GPT_OSS_HEAD}(?=\s{{0,64}}\{{)",
        read_gpt_oss,
        misspelled=lambda: rf"{GPT_OSS_SLIPS}(?=\s{{0,64}}\{{)",
        tags=tuple((f"{place} to=", "<|call|>") for place in _GPT_OSS_PLACES),
        is_json=True,
        behind_tag=True,
    ),
)

MARKERS = {
    "<|tool_call|>": "<|/tool_call|>",  # Granite and Phi-4.
    "<|tool_calls|>": "<|/tool_calls|>",  # Phi-4-mini.
    "<|python_start|>": "<|python_end|>",  # Llama 4.
    "<|tool_call_start|>": "<|tool_call_end|>",  # LFM2.
    "<seed:tool_call>": "</seed:tool_call>",  # Seed-OSS.
    "<longcat_tool_call>": "</longcat_tool_call>",  # LongCat.
    "<tool_calls>": "</tool_calls>",  # Hunyuan, Jamba, Apriel and MiniMax M1.
    "<TOOLCALL>": "</TOOLCALL>",  # Nemotron Nano.
    "<|tools_prefix|>": "<|tools_suffix|>",  # Apertus.
    "<|START_ACTION|>": "<|END_ACTION|>",  # Command R and Command A.
    "<|action_start|>": "<|action_end|>",  # InternLM, which also uses <|plugin|>.
    "<|plugin|>": "<|action_end|>",
    "[TOOL_REQUEST]": "[END_TOOL_REQUEST]",  # Models without a template in LM Studio.
    "[TOOL_CALL]": "[/TOOL_CALL]",  # MiniMax M2 on some servers.
}
"""Markers that can enclose any of the bodies. Maps opening markers to closing markers."""

FOREIGN = {**{opening: closing for row in CALL_FORMS for opening, closing in row.tags}, **MARKERS}
"""All markers of model families. Maps opening markers to closing markers."""

_ANYWHERE = tuple(row for row in CALL_FORMS if row.anywhere)
_NARROW = tuple(row for row in CALL_FORMS if row.after_own_tag)
_ANY_BODY = frozenset(
    [*MARKERS, "<|tool_call>", *(opening for row in CALL_FORMS if row.anywhere for opening, _ in row.tags)]
)
_UNTYPED = frozenset([*(opening for opening in FOREIGN if "|" in opening), "<function_calls>"])
"""Opening markers after which a call can begin with a space and the tool's name. In prose, these markers are never
followed by a space and a word.
"""

_BY_TAG = {
    opening: (
        *(row for row in CALL_FORMS if (opening, closing) in row.tags),
        *(_ANYWHERE if opening in _ANY_BODY else ()),
    )
    for opening, closing in FOREIGN.items()
}


def row_at(
    text: str,
    at: int,
    opening: str,
    *,
    behind_tag: bool,
    final: bool,
    narrow: bool = False,
    misspelled: bool = True,
    rows: Sequence[CallForm] | None = None,
) -> CallForm | bool | None:
    """Return the call form whose body begins at ``at``, after an opening marker.

    Returns False if no body begins there, or None if more text is needed.

    ``opening``: the opening marker. ``behind_tag``: whether ``at`` is directly after the marker, or on a new line after
    it. ``final``: no more text will arrive. ``narrow``: accept only toolsim's own forms. ``misspelled``: also accept
    bodies that begin with a misspelled marker. ``rows``: the call forms to try, if the marker belongs to a custom form.
    """
    rows = rows or _BY_TAG.get(opening, _NARROW if narrow else _ANYWHERE)
    needs_tag = opening not in _UNTYPED
    allowed = [row for row in rows if behind_tag or not (row.behind_tag and needs_tag)]
    found = _first(((row.begins, row) for row in allowed), text, at, final=final)
    if found is not False or not misspelled:
        return found
    slips = (row for row in allowed if row.may_slip(text, at))
    return _first(((row.misspelled(), row) for row in slips if row.misspelled), text, at, final=final)


def _first(rows: Iterable[tuple[str, CallForm]], text: str, at: int, *, final: bool) -> CallForm | bool | None:
    """Return the first call form whose pattern matches at ``at``, False if no pattern matches, or None if more text is
    needed.
    """
    is_undecided = False
    for pattern, row in rows:
        found = match_at(pattern, text, at, final=final)
        if found is not None and not found.partial:
            return row
        is_undecided = is_undecided or found is not None
    return None if is_undecided else False


_KINDS: Mapping[Body, tuple[str, ...]] = {
    "named": ("named JSON",),
    "python": ("pythonic",),
    "elements": ("use_tool", "Qwen3-Coder", "MiniCPM5", "MiniMax M2"),
    "pairs": ("GLM 4.5",),
    "braces": ("Gemma 4",),
}
"""The names of the call forms to try for each kind of body that a custom form can declare. JSON is the default."""


@lru_cache(maxsize=16)
def custom_rows(forms: tuple[CustomForm, ...]) -> Mapping[str, tuple[CallForm, ...]]:
    """Return the call forms that can follow each opening marker of the custom forms."""
    return {form.opening: tuple(_custom(form)) for form in forms}


def _custom(form: CustomForm) -> Iterator[CallForm]:
    for row in _ANYWHERE:
        if form.body == "any" or row.name in _KINDS.get(form.body, ("JSON",)):
            if form.name_key or form.arguments_key:
                yield replace(row, read=_keyed(form))
            else:  # Unlike toolsim's own markers, a custom marker is not mentioned in sentences.
                yield row if row is JSON else replace(row, alone=None, behind_tag=False)


def _keyed(form: CustomForm) -> Callable[[str], list[ParsedCall]]:
    """Return a reader for JSON calls that also accepts the custom form's own keys for the name and the arguments."""

    def read(body: str) -> list[ParsedCall]:
        return [_with_keys(call, form) for call in read_bare_json(body)]

    return read


def _with_keys(call: ParsedCall, form: CustomForm) -> ParsedCall:
    unknown = dict(call.unknown)
    name, given = call.name, call.given
    if name is None and form.name_key in unknown and isinstance(named := unknown.pop(form.name_key).value, str):
        name = named
    if given is None and form.arguments_key in unknown:
        given = unknown.pop(form.arguments_key)
    return replace(call, name=name, given=given, unknown=unknown)


def read_form(opening: str, body: str, rows: Sequence[CallForm] | None = None) -> list[ParsedCall]:
    """Parse a body in any of the call forms. The result contains at least one call. ``rows``: as in ``row_at``."""
    start = len(body) - len(body.lstrip())
    # The body may be empty. The closing tag is appended so that an empty body also matches one of the forms.
    is_behind = not start or "\n" in body[:start]
    row = row_at(body + FOREIGN.get(opening, "</"), start, opening, behind_tag=is_behind, final=True, rows=rows)
    return row.read(body) if isinstance(row, CallForm) else _read_use_tool(body)


def reads_cleanly(
    row: CallForm, opening: str, body: str, closing: str = "", rows: Sequence[CallForm] | None = None
) -> bool:
    """Return whether a body without its closing tag is complete and needs no repair.

    ``closing``: the missing closing tag. In some forms, this tag also ends the last call in the body.
    """
    if not body.rstrip().endswith(row.whole) and row.whole != closing:
        return False
    return all(call.is_clean for call in (read_bare_json(body) if row is JSON else read_form(opening, body, rows)))


def needs_end(row: CallForm, opening: str) -> bool:
    """Return whether an opening tag without its closing bracket (``<tool_call``) must be rejected before a body in this
    form.

    This is the case if the body begins with a bare name, because the tag and the name might be one longer word.
    """
    return row.name in ("pythonic", "named JSON") and not opening.endswith((">", "]"))
