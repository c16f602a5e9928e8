"""Parses the output of a search server into results, and renders results as text for the model.

Depending on the search server, the output is JSON with a list of results, or text in paragraphs. The address and the
title of each result are extracted. The complete text of the result is kept, because the model has to read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolsim.core.errors import BadRequest
from toolsim.wire.json_codec import read_body
from toolsim.wire.json_fields import array, count, mapping, mappings, string

MAX_RESULTS = 50
"""Maximum number of results to use from one search."""
NO_RESULTS = "Nothing was found."

_URL = re.compile(r"https?://[^\s<>\"'`\])}]+")
_ADDRESS = re.compile(r"https?://\S{1,2000}")
_LINK = re.compile(r"\[([^\[\]\n]{1,300})\]\((https?://[^\s()\[\]]+)\)")
_BULLET = re.compile(r"^[ \t>*#-]*+(?:\d{1,3}[.)][ \t]*+)?")
_TITLE = re.compile(rf"{_BULLET.pattern}[*_]*+title[*_]*+:[*_ \t]*+(.+)$", re.IGNORECASE | re.MULTILINE)
_SEPARATOR = re.compile(r"\n[ \t]*+(?:-{3,}[ \t]*+)?(?=\n)")
# Matches the line break before the next result if results are not separated by empty lines.
_BEGINS = re.compile(r"\n(?=[ \t]*(?:\d{1,3}[.)]\s|[-*]\s+\[|[*_]*title[*_]*:))", re.IGNORECASE)
_LISTS = ("results", "organic", "organic_results", "items", "value", "data", "web", "webPages", "hits", "documents")
_URLS, _TITLES = ("url", "link", "href", "uri"), ("title", "name", "headline")
_TEXTS = ("content", "text", "snippet", "description", "summary", "body", "abstract", "highlights", "extra_snippets")
_AGES = ("page_age", "age", "date", "published", "published_date", "publishedDate", "publishedAt")
_MAX_TITLE = 300
_MAX_HEAD = 2_000
"""Number of characters at the beginning of an entry that are searched for a title."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page that a search has found. ``age`` is the date or age of the page, as formatted by the server."""

    url: str
    title: str
    text: str = ""
    age: str = ""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits that a request sets for its web searches: allowed and blocked domains (including their subdomains), and
    the number of searches (-1 means unlimited).
    """

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    uses: int = -1

    def permits(self, url: str) -> bool:
        """Return whether the domain limits allow the page at ``url`` in the results."""
        if self.allowed and not any(_is_within(url, domain) for domain in self.allowed):
            return False
        return not any(_is_within(url, domain) for domain in self.blocked)


def read_limits(declared: Mapping[str, Any], param: str) -> SearchLimits:
    """Read the limits of a web search tool, declared in the Responses or the Messages API.

    Raises BadRequest if a limit is invalid.
    """
    filters = mapping(declared.get("filters"))
    domains: dict[str, tuple[str, ...]] = {}
    for key in ("allowed_domains", "blocked_domains"):
        value = declared.get(key) or filters.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
            raise BadRequest(f"Invalid '{param}.{key}': expected an array of domains.", f"{param}.{key}")
        domains[key] = tuple(value)
    uses = count(declared, "max_uses") if declared.get("max_uses") is not None else -1
    return SearchLimits(domains["allowed_domains"], domains["blocked_domains"], uses)


def _is_within(url: str, domain: str) -> bool:
    """Return whether a page belongs to a domain, such as ``example.com`` or ``example.com/docs``, or to a subdomain."""
    bare = domain.strip().lower().partition("://")[2] or domain.strip().lower()
    host, _, path = bare.partition("/")
    try:
        parts = urlsplit(url)
        own = (parts.hostname or "").lower()
    except ValueError:
        return False
    host = host.removeprefix("*.").partition(":")[0]
    is_of_host = bool(host) and (own == host or own.endswith(f".{host}"))
    return is_of_host and parts.path.startswith(f"/{path}" if path else "")


def read_results(output: str) -> list[SearchResult]:
    """Return at most the first ``MAX_RESULTS`` results in the output of the search tool."""
    found = [*_of_json(output)] or [*_of_text(output)]
    return found[:MAX_RESULTS]


def results_text(results: Iterable[SearchResult]) -> str:
    """Return results as text for the model."""
    entries = [
        "\n".join(filter(None, [f"{number}. {each.title}", each.url, each.age, each.text]))
        for number, each in enumerate(results, 1)
    ]
    return "\n\n".join(entries) or NO_RESULTS


def _of_json(output: str) -> Iterator[SearchResult]:
    text = output.strip()
    if not text.startswith(("{", "[")):
        return
    document = read_body(f'{{"results":{text}}}'.encode("utf-8", "surrogatepass"))
    for entry in _entries((document or {}).get("results"), 4):
        url = next((string(entry.get(key)) for key in _URLS if string(entry.get(key))), "")
        if not _ADDRESS.fullmatch(url):
            continue
        title = next((string(entry.get(key)) for key in _TITLES if string(entry.get(key))), "")
        texts = [entry.get(key) for key in _TEXTS]
        lines = [line for text in texts for line in (text if isinstance(text, list) else [text])]
        age = next((string(entry.get(key)) for key in _AGES if string(entry.get(key))), "")
        yield SearchResult(url, _line(title) or url, "\n".join(line for line in lines if isinstance(line, str)), age)


def _entries(value: object, depth: int) -> list[Mapping[str, Any]]:
    """Return the list of results in a JSON document, under any of the keys that search servers use."""
    if isinstance(value, list):
        return [*mappings(value)]
    for key in _LISTS if depth and isinstance(value, dict) else ():
        if found := _entries(mapping(value).get(key), depth - 1):
            return found
    return []


def _of_text(output: str) -> Iterator[SearchResult]:
    """Yield a result for each paragraph or list entry that contains an address. Other text belongs to the result before
    it.
    """
    url, title = "", ""
    lines: list[str] = []
    for block in _SEPARATOR.split(output):
        for entry in filter(str.strip, _BEGINS.split(block)):
            found = _URL.search(entry)
            if found is not None:
                if url:
                    yield SearchResult(url, title, "\n".join(lines))
                    lines = []
                url = found[0].rstrip(".,;:")
                title = _title(entry, url) or (_line(lines[-1].rpartition("\n")[2]) if lines else "") or url
            lines.append(entry.strip())
    if url:
        yield SearchResult(url, title, "\n".join(lines))


def _title(entry: str, url: str) -> str:
    entry = entry[:_MAX_HEAD]
    if (link := _LINK.search(entry)) is not None:
        return _line(link[1])
    if (title := _TITLE.search(entry)) is not None:
        return _line(title[1])
    first = _BULLET.sub("", entry.lstrip().partition("\n")[0])
    return _line(first.partition(url)[0].strip(" *_:-–|"))


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_TITLE].strip("*_ ")


def citations(text: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the citations of found pages in ``text``, as annotations of the Responses API.

    ``titles`` maps the addresses of the pages to their titles. A Markdown link to a page is
    a single citation, including its label.
    """
    known = [url for url in titles if url in text]
    if not known:
        return []
    addresses = "|".join(re.escape(url) for url in sorted(known, key=len, reverse=True))
    pattern = re.compile(rf"\[[^\[\]\n]{{0,300}}\]\(({addresses})\)|({addresses})")
    return [
        {
            "type": "url_citation",
            "start_index": found.start(),
            "end_index": found.end(),
            "url": (url := found[1] or found[2]),
            "title": titles[url],
        }
        for found in pattern.finditer(text)
    ]


def query_parameter(schema: Mapping[str, Any]) -> str:
    """Return the name of a search tool's query parameter: a usual name, such as ``query``, or else the first string
    parameter, preferably a required one. Return "query" if there is neither.
    """
    properties = mapping(schema.get("properties"))
    required = [name for name in array(schema.get("required")) if isinstance(name, str)]
    named = [name for name in ("query", "q", "search_query", "search", "question", "input") if name in properties]
    strings = [name for name in (*required, *properties) if mapping(properties.get(name)).get("type") == "string"]
    return [*named, *strings, "query"][0]


def query_of(arguments: Mapping[str, Any]) -> str:
    """Return the query in the arguments of a search."""
    return string(arguments.get("query"))


def titles_of(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the pages that a ``web_search_call`` has found, keyed by address."""
    found = mappings(item.get("results")) if item.get("type") == "web_search_call" else ()
    return {string(page.get("url")): string(page.get("title")) for page in found if string(page.get("url"))}
