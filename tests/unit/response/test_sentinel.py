from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.each import each
from toolsim.response.calls_in_reasoning import Thoughts
from toolsim.response.segments import Block, FenceMark, Fragment, Oversize, Segment
from toolsim.response.sentinel import Sentinel

T = "<tool_call>"
E = "</tool_call>"


def parse(chunks: list[str], **options: object) -> list[Segment]:
    """Return the segments for text that arrives in ``chunks``, with adjacent prose joined."""
    parser = Thoughts(Sentinel(**options), Sentinel)  # type: ignore[arg-type]
    pieces = [piece for chunk in chunks for piece in parser.feed(chunk)] + [*parser.finish()]
    joined: list[Segment] = []
    for piece in pieces:
        if isinstance(piece, str):
            assert piece
            if joined and isinstance(joined[-1], str):
                joined[-1] += piece
                continue
        joined.append(piece)
    return joined


def raw(pieces: list[Segment]) -> str:
    return "".join(
        piece if isinstance(piece, str) else piece.raw for piece in pieces if not isinstance(piece, Fragment)
    )


def J(body: str, closing: str = E) -> Block:
    return Block("json", T, body, closing)


def X(body: str) -> Block:
    return Block("xml", "<use_tool>", body, "</use_tool>")


CALL = '{"name":"f","arguments":"{\\"k\\":\\"</tool_call>\\"}"}'

# For each rule in the docstring of the module under test, in order: example texts and their segments.
CASES: dict[str, tuple[str, list[Segment]]] = {
    "1 prose": ("Just words, a < b and <b>bold</b>.", ["Just words, a < b and <b>bold</b>."]),
    "1 call": (f"{T}{CALL}{E}", [J(CALL)]),
    "1 between prose": (f"a {T}{CALL}{E} b", ["a ", J(CALL), " b"]),
    "1 look-alikes": ("<tool_calls>{}</tool_calls> <tool_call > < tool_call> <Tool_Call>{", [
        "<tool_calls>{}</tool_calls> <tool_call > < tool_call> <Tool_Call>{"
    ]),
    "1 doubled bracket": (f"<{T}{CALL}{E}>", ["<", J(CALL), ">"]),
    "1 beginning of a tag at the end": ("text <tool_ca", ["text <tool_ca"]),
    "1 closing tag alone": (f"so {E} is text", [f"so {E} is text"]),
    "2 whitespace before the body": (f"{T}\n  {CALL}\n{E}", [J(f"\n  {CALL}\n")]),
    "2 prose after the tag": (f"write {T} and {T}tags too{E}", [f"write {T} and {T}tags too{E}"]),
    "2 a name alone": (f"{T}f{E}{T}f\n{E}", [Block("xml", T, "f", E, True), Block("xml", T, "f\n", E, True)]),
    "2 tag then call": (f"{T}{T}{CALL}{E}", [T, J(CALL)]),
    "2 brace but no body": (f"{T}{{x}} {T}[1] {T}{{ {{", [f"{T}{{x}} {T}[1] {T}{{ {{"]),
    "2 array": (f"{T}[{CALL},{CALL}]{E}", [J(f"[{CALL},{CALL}]")]),
    "2 empty object": (f"{T}{{}}{E}", [J("{}")]),
    "2 spaces up to their limit": (f"{T}{' ' * 1024}{CALL}{E}", [J(f"{' ' * 1024}{CALL}")]),
    "2 spaces beyond it": (f"{T}{' ' * 1025}{CALL}{E}", [f"{T}{' ' * 1025}{CALL}{E}"]),
    "2 spaces without end": (f"{T}{' ' * 1100}{CALL}{E}", [f"{T}{' ' * 1100}{CALL}{E}"]),
    "3 tags in a string": (f'{T}{{"a":"{E}{T}<use_tool>"}}{E}', [J(f'{{"a":"{E}{T}<use_tool>"}}')]),
    "3 tags in single quotes": (f"{T}{{'a':'{E}{T}\\'{E}'}}{E}!", [J(f"{{'a':'{E}{T}\\'{E}'}}"), "!"]),
    "5 an apostrophe in single quotes": (f"{T}{{'a':'it's {E}'}}{E}", [J("{'a':'it's "), f"'}}{E}"]),
    "7 single quote without end": (f"{T}{{'a':'x}}{E} {T}{CALL}{E}", [f"{T}{{'a':'x}}{E} ", J(CALL)]),
    "3 escaped quote": (f'{T}{{"a":"\\"{E}\\\\"}}{E}!', [J(f'{{"a":"\\"{E}\\\\"}}'), "!"]),
    "3 last brace missing": (f'{T}{{"a":{{"b":1}}{E}.', [J('{"a":{"b":1}'), "."]),
    "2 bare key": (f"{T}{{ name : 1}}{E}", [J("{ name : 1}")]),
    "2 a word and no colon": (f"{T}{{name}}{E}", [f"{T}{{name}}{E}"]),
    "2 fence inside": (f"{T}\n```json\n{CALL}\n```\n{E}", [J(f"\n```json\n{CALL}\n```\n")]),
    "2 fence of something else": (f"{T}```json\nx{E}", [f"{T}```json\nx{E}"]),
    "2 half a fence": (f"{T}``` {E}", [f"{T}``` {E}"]),
    "3 a wrong closing tag": (f"{T}{CALL}</function> b", [J(CALL, "</function>"), " b"]),
    "3 a wrong closing tag at the end": (f"{T}{CALL}\n</think>", [J(f"{CALL}\n", "</think>")]),
    "3 a wrong closing tag before the right one": (f"{T}{CALL}</tool>\n{E}b", [J(CALL, f"</tool>\n{E}"), "b"]),
    "3 a wrong closing tag, half the right one": (f"{T}{CALL}</tool></tool_x", [J(CALL, "</tool>"), "</tool_x"]),
    "3 a wrong closing tag, JSON incomplete": (f'{T}{{"a":1</tool> {E}', [J('{"a":1</tool> ')]),
    "3 closed by the next tag": (f"{T}{CALL}\n{T}{CALL}{E}", [J(f"{CALL}\n", ""), J(CALL)]),
    "3 next tag, JSON incomplete": (f'{T}{{"a":1,{T}{CALL}{E}', [f'{T}{{"a":1,', J(CALL)]),
    "4 closed by the end": (f"{T}{CALL}\n", [J(f"{CALL}\n", "")]),
    "4 half a closing tag": (f"{T}{CALL}</tool_", [J(CALL, "</tool_")]),
    "4 a quarter": (f"{T}{CALL}<", [J(CALL, "<")]),
    "4 incomplete at the end": (f'a {T}{{"name":"f","argu', [f'a {T}{{"name":"f","argu']),
    "4 string open at the end": (f'a {T}{{"name":"f\\', [f'a {T}{{"name":"f\\']),
    "5 single quotes": (f"{T}{{'a':'\"'}}{E} b", [J("{'a':'\"'}"), " b"]),
    "5 quote missing": (f'{T}{{"a":"x}}{E}\n{T}{CALL}{E}', [J('{"a":"x}'), "\n", J(CALL)]),
    "5 words after the JSON": (f"{T}{CALL} done{E}", [J(f"{CALL} done")]),
    "5 words after the JSON, no end": (f"{T}{CALL} done {{", [f"{T}{CALL} done {{"]),
    "5 not JSON, then a call": (f'{T}{{"a" ~ {T}{CALL}{E}', [f'{T}{{"a" ~ ', J(CALL)]),
    "5 xml": ("a <use_tool><name>f</name><k>{\"</k></use_tool> b", ["a ", X('<name>f</name><k>{"</k>'), " b"]),
    "5 xml, spaces": ("<use_tool>\n <name>f</name>\n</use_tool>", [X("\n <name>f</name>\n")]),
    "5 xml not closed": (f"<use_tool><name>f</name> {T}{CALL}{E}", ["<use_tool><name>f</name> ", J(CALL)]),
    "5 xml form in the other tag": (f"{T}<name>f</name>{E}", [Block("xml", T, "<name>f</name>", E)]),
    "5 xml prose": ("<use_tool><nam>f", ["<use_tool><nam>f"]),
    "6 trailing comma": (f'{T}{{"a":1,}}{E}', [J('{"a":1,}')]),
    "6 raw line end in a string": (f'{T}{{"a":"x\ny"}}{E}', [J('{"a":"x\ny"}')]),
    "6 bad escape": (f'{T}{{"a":"\\q{E}"}}{E}', [J(f'{{"a":"\\q{E}"}}')]),
    "6 a brace too many": (f"{T}{CALL}}}{E}", [J(f"{CALL}}}")]),
    "6 words for values": (f'{T}{{"a":None,"b":NaN}}{E}', [J('{"a":None,"b":NaN}')]),
    "6 two objects": (f"{T}{CALL}\n{CALL}{E}", [J(f"{CALL}\n{CALL}")]),
    "7 a later block counts": (f'{T}{{"a":"{T}{CALL}{E}', [f'{T}{{"a":"', J(CALL)]),
    "8 think": (f"<think>{T}{CALL}{E}</think>{T}{CALL}{E}", [f"<think>{T}{CALL}{E}</think>", J(CALL)]),
    "8 think after space": (f"\n <think>{T}{CALL}{E}</think> x", [f"\n <think>{T}{CALL}{E}</think> x"]),
    "8 think that ends with a call": (f"<think>a {T}{CALL}{E} </think>\n", [
        "<think>a ", J(CALL), FenceMark(" ", opening=False), FenceMark("</think>", opening=False),
        FenceMark("\n", opening=False)
    ]),
    "8 think and a call, then more": (f"<think>{T}{CALL}{E} b</think>", [f"<think>{T}{CALL}{E} b</think>"]),
    "8 other thoughts": (f"[THINK]{T}{CALL}{E}[/THINK]x{T}{CALL}{E}", [f"[THINK]{T}{CALL}{E}[/THINK]x", J(CALL)]),
    "8 think not at the start": (f"a<think>{T}{CALL}{E}", ["a<think>", J(CALL)]),
    "8 think without end": (f"<think>{T}{CALL}{E}", ["<think>", J(CALL)]),
    "8 think after any space": (f"\u00a0\x0b\u2028<think>{T}</think>{T}{CALL}{E}", [
        f"\u00a0\x0b\u2028<think>{T}</think>", J(CALL)
    ]),
    "8 half an end in it": (f"<think>a</th</think><think>{T}{CALL}{E}", ["<think>a</th</think><think>", J(CALL)]),
    "8 nearly think": (f"<thin>{T}{CALL}{E}", ["<thin>", J(CALL)]),
    "8 call first": (f" {T}{CALL}{E}", [" ", J(CALL)]),
    "fence": (f"```\n{T}{CALL}{E}\n```", ["```\n", J(CALL), "\n```"]),
}  # fmt: skip


@each("name", CASES)
@each("size", [0, 1, 2, 3, 7], ids=lambda n: f"by-{n or 'whole'}")
def test_rule(name: str, size: int) -> None:
    """The example for each of the sentinel's rules yields the same segments as a complete text and in chunks of any
    size.
    """
    text, pieces = CASES[name]
    chunks = [text[i : i + size] for i in range(0, len(text), size)] if size else [text]
    assert parse(chunks) == pieces


@each("name", CASES)
def test_rule_at_every_split(name: str) -> None:
    """The example for each rule yields the same segments wherever its text is split in two."""
    text, pieces = CASES[name]
    for cut in range(len(text) + 1):
        assert parse([text[:cut], text[cut:]]) == pieces, cut


@each("size", [1, 5, 10_000])
@each(
    ("body", "kept"),
    [
        ('{"a":"' + "x" * 200 + '"}', 50),
        ('{"a":"' + "é" * 200 + '"}', 28),
        ('{"a":"' + "🐢" * 200 + '"}', 17),
        ("<name>" + "é" * 200, 28),
    ],
)
def test_oversized_block_is_emitted_up_to_the_limit(body: str, kept: int, size: int) -> None:
    """If a tagged block exceeds the size limit, as much of its text as fits into the limit in bytes is emitted, without
    splitting a character (rule 9 in ``sentinel.py``).
    """
    text = f"{T}{body}{E} {T}{CALL}{E}"
    pieces = parse([text[i : i + size] for i in range(0, len(text), size)], limit=50)
    assert pieces[0] == Oversize(T + body[:kept])
    assert raw(pieces) == text
    assert pieces[-1] == J(CALL) or len(CALL) > 50


def test_private_tag_makes_tool_call_text() -> None:
    """If another tag name is configured, ``<tool_call>`` is text. If ``use_tool`` is disabled, ``<use_tool>`` is text
    as well.
    """
    text = f"{T}{CALL}{E}<use_tool><name>f</name></use_tool><my-tag>{CALL}</my-tag>"
    pieces = parse([text], tag="my-tag", use_tool=False)
    assert pieces == [text[: text.index("<my-tag>")], Block("json", "<my-tag>", CALL, "</my-tag>")]


def test_prose_is_not_held_back() -> None:
    """Text that cannot become a tag is emitted immediately. If text looks like the beginning of a tag but turns out not
    to be one, it is emitted as soon as this is clear.
    """
    sentinel = Sentinel()
    assert sentinel.feed("Hello ") == ["Hello "]
    assert sentinel.feed("a<b <tool") == ["a<b "]
    assert sentinel.feed("box>") == ["<toolbox>"]
    assert sentinel.feed(T) == []
    assert sentinel.in_block
    assert "".join(map(str, sentinel.feed(" x"))) == f"{T} x"
    assert not sentinel.in_block


def test_fragments_preview_the_body() -> None:
    """While a tagged block with JSON is open, its body is emitted in fragments as it arrives. Concatenated, the
    fragments are a prefix of the body.
    """
    sentinel = Sentinel(fragments=True)
    text = f"a{T} {CALL}{E}"
    pieces = [piece for char in text for piece in sentinel.feed(char)]
    body = "".join(piece.text for piece in pieces if isinstance(piece, Fragment))
    assert pieces[-1] == J(f" {CALL}")
    assert f" {CALL}".startswith(body)
    assert len(body) >= len(CALL) - 1


def test_repr_shows_the_state() -> None:
    """The sentinel's ``repr`` shows the state under the name that the diagram uses."""
    sentinel = Sentinel()
    seen = [repr(sentinel)]
    for text in ("a", T, "{", '"', "~"):
        sentinel.feed(text)
        seen.append(repr(sentinel))
    assert re.findall(r"state_(\w+)", " ".join(seen)) == ["prose", "prose", "opened", "opened", "json", "json"]


WORDS = [
    T, E, "<use_tool>", "</use_tool>", "<name>", "f</name>", "<think>", "</think>", "<", "tool_call>", "</tool",
    "{", "}", "[", "]", '"', "'", "\\", ",", ":", '"name"', "1", "true", "~", " ", "\n", "é", "🐢", "\ud83d",
    "x" * 9, CALL, '{"a":"', f"{T}{CALL}{E}",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=25).map("".join)


@given(TEXTS, st.data(), st.sampled_from([5, 20, 60, 200_000]), st.booleans())
@example(f"{T}{{{' ' * 30}x", None, 20, False)
def test_any_text_at_any_split(text: str, data: st.DataObject | None, limit: int, fragments: bool) -> None:
    """Any text is split into segments without loss, and in the same way wherever it is divided into chunks (rules 10
    and 11 in ``sentinel.py``).
    """
    whole = parse([text], limit=limit)
    assert raw(whole) == text
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text))))) if data else range(len(text))
    bounds = [0, *cuts, len(text)]
    pieces = parse([text[a:b] for a, b in pairwise(bounds)], limit=limit, fragments=fragments)
    assert [piece for piece in pieces if not isinstance(piece, Fragment)] == whole or fragments
    assert raw(pieces) == text
    assert parse(list(text), limit=limit) == whole


@pytest.mark.parametrize("block", [J('{"name":"é"}'), X("<name>é</name><a>1</a>")], ids=["json", "use_tool"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_body_at_the_limit_is_a_block(block: Block, size: int) -> None:
    """A tagged block can have a body of exactly the maximum size in bytes. With one more byte, it is oversized."""
    for text in (block.raw, f"a {block.raw} b", f"{block.raw}{block.raw}"):
        limit = len(block.body.encode())
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert block in parse(chunks, limit=limit)
        over = parse(chunks, limit=limit - 1)
        assert block not in over
        assert any(isinstance(piece, Oversize) for piece in over)


@pytest.mark.parametrize("body", ['{"éééééééééééé" x', '{"éééééééééééé" <tool_call>{}'], ids=["no JSON", "a tag"])
@pytest.mark.parametrize("size", [1, 1000])
def test_limit_counts_bytes_of_a_broken_block(body: str, size: int) -> None:
    """The size limit counts bytes rather than characters, even for a broken block (rule 9 in ``sentinel.py``)."""
    text = f"{T}{body}{E}"
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    first, *_ = parse(chunks, limit=20)
    assert first == Oversize(text[: len(T) + 2 + 9])
    assert raw(parse(chunks, limit=20)) == text
