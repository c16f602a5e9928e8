import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.pages.page import WIDTH, Page, clip, one_line, plural, wrap


def test_title_breaks_between_facts():
    """A title can break between two facts but never within a fact. Empty facts are omitted."""
    page = Page()
    page.title("ANSWER", ["200", "", "a" * 60, "b" * 20])
    assert str(page).splitlines() == ["ANSWER · 200 · " + "a" * 60, "       · " + "b" * 20]


def test_sections_are_separated():
    """A heading has one blank line before it and is as wide as the page. Trailing blank lines are dropped."""
    page = Page()
    page.line("x", 0)
    page.heading("TOOLS", "2\n3")
    page.gap()
    page.gap()
    lines = str(page).split("\n")
    assert lines[:2] == ["x", " "]
    assert lines[2].startswith("TOOLS  2 3 ──")
    assert len(lines[2]) == WIDTH
    assert lines[3:] == [""]


def test_empty_lines_contain_a_space():
    """mitmweb gives an empty line no height, so each empty line contains at least a space."""
    page = Page()
    page.text("a\n\nb")
    page.text("c\n\nd", bar="│ ")
    assert str(page) == "  a\n \n  b\n  │ c\n  │\n  │ d\n"


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("abcdefghijklmn", ["abcdefghij", "klmn"]),
        ('{"a":1,"b":2}', ['{"a":1,', '"b":2}']),
        ("abcdefg</tag>", ["abcdefg", "</tag>"]),
        ("  indented by two", ["  indented", "  by two"]),
        (" " * 50 + "xyz", ["     xyz"]),
        ("\tx", ["    x"]),
        ("", [""]),
    ],
)
def test_wrap(line, lines):
    """Lines break at spaces, after commas and before closing tags. A word is cut only if it is longer than a line."""
    assert wrap(line, 10) == lines


@given(st.text(alphabet="ab ,</\t", max_size=300))
def test_wrap_loses_only_whitespace(line):
    """No wrapped line is too long, and all characters except whitespace are retained."""
    parts = wrap(line, 10)
    assert all(len(part) <= 10 for part in parts)
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_clip_and_plural():
    """Clipped text ends in an ellipsis, and a noun has the correct form for its number."""
    assert clip("abc", 3) == "abc"
    assert clip("abcd", 3) == "ab…"
    assert clip("a\nb", 9) == "a b"
    assert one_line("a\r\nb\u2028c") == "a b c"
    assert [plural(1, "tool"), plural(2345, "tool")] == ["1 tool", "2,345 tools"]


def test_lone_surrogate_is_replaced():
    """A lone surrogate, which no terminal can display, is replaced. All other text on the page is unchanged."""
    page = Page()
    page.text("half a \ud83d smile, and \ud83d\ude00 a whole one")
    assert str(page) == "  half a \ufffd smile, and \U0001f600 a whole one\n"


def test_verbatim_text_keeps_its_lines():
    """In verbatim text, an overlong line continues after an arrow, so that it does not look like two lines."""
    page = Page()
    page.verbatim("  one\n\n" + "x" * WIDTH + "\n" + "word " * 20)
    lines = str(page).split("\n")
    assert lines[:3] == ["  one", " ", "x" * WIDTH]
    assert (lines[3][:4], lines[4][:6], lines[5:]) == ("word", "↪ word", [""])
    assert len(lines[3].split() + lines[4].split()) == 21
