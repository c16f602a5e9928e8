import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolsim.pages.page import WIDTH, Page, clip, one_line, plural, wrap


def test_title_breaks_between_facts():
    """A long page title is wrapped between two facts, never within a fact. Empty facts are omitted."""
    page = Page()
    page.title("ANSWER", ["200", "", "a" * 60, "b" * 20])
    assert str(page).splitlines() == ["ANSWER · 200 · " + "a" * 60, "       · " + "b" * 20]


def test_sections_are_separated():
    """A heading follows a single blank line and is padded to the width of the page. Blank lines at the end of the page
    are dropped.
    """
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
    """Empty lines of a page contain at least a space, because mitmweb shows a line without characters with a height of
    zero.
    """
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
    """Lines are wrapped at spaces, after commas and before closing tags. A word is split only if it is longer than a
    line.
    """
    assert wrap(line, 10) == lines


@given(st.text(alphabet="ab ,</\t", max_size=300))
def test_wrap_loses_only_whitespace(line):
    """Wrapped lines are never too long, and no characters except whitespace are lost."""
    parts = wrap(line, 10)
    assert all(len(part) <= 10 for part in parts)
    assert "".join("".join(parts).split()) == "".join(line.split())


def test_clip_and_plural():
    """``clip`` ends shortened text with an ellipsis. ``plural`` returns a number with the singular or plural form of a
    noun.
    """
    assert clip("abc", 3) == "abc"
    assert clip("abcd", 3) == "ab…"
    assert clip("a\nb", 9) == "a b"
    assert one_line("a\r\nb\u2028c") == "a b c"
    assert [plural(1, "tool"), plural(2345, "tool")] == ["1 tool", "2,345 tools"]


def test_lone_surrogate_is_replaced():
    """Lone surrogates are replaced, because terminals cannot display them. All other text is unchanged."""
    page = Page()
    page.text("half a \ud83d smile, and \ud83d\ude00 a whole one")
    assert str(page) == "  half a \ufffd smile, and \U0001f600 a whole one\n"


def test_verbatim_text_keeps_its_lines():
    """If a line of verbatim text is wrapped, the next line starts with an arrow, to distinguish it from a new line of
    the text.
    """
    page = Page()
    page.verbatim("  one\n\n" + "x" * WIDTH + "\n" + "word " * 20)
    lines = str(page).split("\n")
    assert lines[:3] == ["  one", " ", "x" * WIDTH]
    assert (lines[3][:4], lines[4][:6], lines[5:]) == ("word", "↪ word", [""])
    assert len(lines[3].split() + lines[4].split()) == 21
