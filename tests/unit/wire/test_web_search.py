"""Web search results in the formats of several servers, domain limits, and citations."""

from __future__ import annotations

import json

import pytest
from support.growth import LINEAR, growth
from toolsim.core.errors import BadRequest
from toolsim.wire.web_search import (
    SearchLimits,
    SearchResult,
    citations,
    query_parameter,
    read_limits,
    read_results,
    results_text,
)

HERON = {"title": "Herons", "url": "https://b.example/h", "snippet": "Grey."}


@pytest.mark.parametrize(
    "output",
    [
        [HERON],
        {"results": [HERON]},
        {"web": {"results": [{"name": "Herons", "link": "https://b.example/h", "description": "Grey."}]}},
        {"organic": [{"title": "Herons", "link": "https://b.example/h", "snippet": "Grey."}]},
        {"data": {"items": [{"title": "Herons", "href": "https://b.example/h", "text": "Grey."}]}},
    ],
)
def test_results_in_json(output: object) -> None:
    """Search results are found in JSON under any common field name, regardless of how deeply the list of results is
    nested.
    """
    assert read_results(json.dumps(output)) == [SearchResult("https://b.example/h", "Herons", "Grey.")]


@pytest.mark.parametrize(
    "output",
    [
        "Title: Herons\nURL: https://b.example/h\nGrey.\n\nTitle: Owls\nURL: https://b.example/o\nBrown.",
        "1. [Herons](https://b.example/h)\n   Grey.\n2. [Owls](https://b.example/o)\n   Brown.",
        "- [Herons](https://b.example/h): Grey.\n- [Owls](https://b.example/o): Brown.",
        "**Title:** Herons\n**Link:** https://b.example/h\nGrey.\n---\n**Title:** Owls\nhttps://b.example/o\nBrown.",
        "Found 2 results.\n\nHerons\nhttps://b.example/h\n\nGrey.\n\nOwls - https://b.example/o\nBrown.",
    ],
)
def test_results_in_text(output: str) -> None:
    """Search results are found in plain text and in Markdown, and no text is lost."""
    first, second = read_results(output)
    assert [(each.url, each.title) for each in (first, second)] == [
        ("https://b.example/h", "Herons"),
        ("https://b.example/o", "Owls"),
    ]
    assert "Grey." in first.text
    assert "Brown." in second.text


@pytest.mark.parametrize(
    "output", ["", "Nothing.", "{}", "[1, {}]", '{"results": ', '{"results":' * 5_000, "[" * 9_000]
)
def test_output_without_urls_has_no_results(output: str) -> None:
    """Output without a URL contains no search results."""
    assert read_results(output) == []
    assert results_text([]) == "Nothing was found."


def test_large_outputs_are_fast() -> None:
    for piece in ("https://b.example/h\n", "Title: x\n", "[x](https://b/", "\n\n---\n", "1. x\n"):
        assert growth(lambda count, piece=piece: read_results(piece * count), 2_000) < LINEAR, piece


@pytest.mark.parametrize(
    ("allowed", "blocked", "url", "permitted"),
    [
        ((), (), "https://a.example/", True),
        (("a.example",), (), "https://a.example/x", True),
        (("a.example",), (), "https://www.a.example/x", True),
        (("a.example",), (), "https://nota.example/x", False),
        (("a.example",), (), "https://a.example.evil/x", False),
        (("a.example",), (), "https://evil/?a.example", False),
        (("a.example",), (), "https://a.example@evil/", False),
        (("a.example/docs",), (), "https://a.example/docs/1", True),
        (("a.example/docs",), (), "https://a.example/blog", False),
        (("https://a.example",), (), "https://A.EXAMPLE/x", True),
        (("*.a.example",), (), "https://b.a.example/x", True),
        ((), ("a.example",), "https://b.a.example/x", False),
        ((), ("a.example",), "https://b.example/x", True),
        (("a.example",), (), "https://[::1", False),
    ],
)
def test_domains_include_subdomains(
    allowed: tuple[str, ...], blocked: tuple[str, ...], url: str, permitted: bool
) -> None:
    """A domain in a search limit includes its subdomains, but not other names that merely end in the same letters."""
    assert SearchLimits(allowed, blocked).permits(url) == permitted


def test_limits_of_both_apis() -> None:
    """Limits for a web search are read in the formats of the Responses and Messages APIs. A malformed list of domains
    is refused.
    """
    assert read_limits({"max_uses": 3, "allowed_domains": ["a"]}, "tools[0]") == SearchLimits(("a",), (), 3)
    assert read_limits({"filters": {"allowed_domains": ["a"]}}, "tools[0]") == SearchLimits(("a",))
    with pytest.raises(BadRequest, match=r"tools\[0\].blocked_domains"):
        read_limits({"blocked_domains": "a"}, "tools[0]")


def test_citations() -> None:
    """If a URL in the text begins with the URLs of several search results, the longest one is cited. A Markdown link is
    cited as a whole.
    """
    titles = {"https://a/": "A", "https://a/b": "B", "https://c/": "C"}
    text = "See [it](https://a/b), https://a/ and [x](https://d/)."
    found = [(text[note["start_index"] : note["end_index"]], note["title"]) for note in citations(text, titles)]
    assert found == [("[it](https://a/b)", "B"), ("https://a/", "A")]
    assert growth(lambda count: citations("[" * count + "https://a/", titles), 10_000) < LINEAR


def test_query_parameter_is_found() -> None:
    """The query parameter of a search tool is found by its name. If no name matches, the first required string
    parameter is used.
    """
    text, number = {"type": "string"}, {"type": "integer"}
    assert query_parameter({"properties": {"n": number, "q": text}}) == "q"
    assert query_parameter({"properties": {"n": number, "a": text, "b": text}, "required": ["n", "b"]}) == "b"
    assert query_parameter({}) == "query"
