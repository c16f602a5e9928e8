"""Hides the secrets in an exchange before the exchange is recorded.

1. Each hidden character of a text is replaced with an ``x``, so that the length stays the same. The text of a stream
   can therefore be joined, searched, and split again at the same positions. In this way, even a key that is split
   across ten deltas is found.
2. A secret is hidden in the same way on both sides of an exchange, so that a recording can still be replayed. A call
   remains a call, in any call form. A number remains a number, whose digits are all 1. ``null`` is not a secret.
3. Headers are treated the other way around. A header's value is hidden unless the header is known to be harmless,
   because any program can define its own headers.
4. JSON without secrets is unchanged, byte for byte.

``secret_rules`` defines what is a secret. Its patterns are bounded, so that the search takes linear time.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from toolsim.recordings.secret_rules import (
    DROPPED_HEADERS,
    DROPPED_PREFIXES,
    KEPT_HEADERS,
    KEPT_PREFIXES,
    PATTERNS,
    is_secret_name,
    is_secret_parameter,
)
from toolsim.recordings.stream_text import EditedStr, edit_pieces, edit_stream, parse_json
from toolsim.wire.json_codec import dump, too_deep

HIDDEN = "[redacted]"

# Minimum length of a secret that is hidden wherever its text occurs. A shorter secret may be an ordinary word, so it is
# hidden only in the field or parameter where it was found.
_MIN_LEARNED = 8
# Maximum length of texts whose redacted forms are cached. The events in a stream repeat many short texts.
_MAX_CACHED = 200

# Matches a name with a value in text, such as ``password = "…"``. The text can be JSON inside JSON, so any number of
# backslashes can precede each quote. A quote after the colon can also end a label such as "Password:", which has no
# value. In this case, JSON punctuation or another quote follows.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z][\w.-]{0,63})(?:\\*[\"'`]|\*{1,2})?"
    r"(?:\s{0,8}(?:=>|:=|[:=])\s{0,8}(?P<open>\\*[\"'`]|<\|\\*\"\|>)(?!\s{0,8}(?:[,:}\])]|\\*[\"'`]))"
    r"|\s{0,8}[:=]\s{0,8}(?P<list>\[)"
    r"|(?:[ \t]{0,4}(?:=>|:=|=)|:)[ \t]{0,4}(?=[^\s\"'`&;,<>\\{\[(]))"
)
_ITEM = re.compile(r"[\s,]{0,64}(?P<open>\\*[\"'`]|<\|\\*\"\|>)")
# Matches a value without quotes, except for closing brackets at its end.
_BARE = re.compile(r"[^\s\"'`&;,<>\\{\[(]{4,8192}(?<![)\]}])")
# The pattern of the closing quote, by the last character of the opening quote. The last entry is for Gemma's ``<|"|>``.
_CLOSE = {quote: re.compile(rf"\\*{quote}") for quote in "\"'`"} | {">": re.compile(r"<\|\\*\"\|>")}
# Matches <password>, <parameter=password>, <parameter name="password">, <arg_key>password</arg_key><arg_value>, and
# their end tags.
_TAG = re.compile(
    r"</(?P<closed>[\w.:｜-]{1,128})"
    r"|<(?:arg_key>|[\w.:｜-]{0,64}parameter(?:=| name=\\*\")|(?:[\w.-]{1,64}:)?)(?P<name>[A-Za-z][\w.-]{0,63})"
    r"(?:</arg_key>\s{0,64}<arg_value|\\*\"[^<>]{0,64}|\s[^<>]{0,256})?>"
)
_TAG_END = re.compile(r"[\s=>]")

# Escaped whitespace in JSON inside JSON. The letter in it could be mistaken for the first letter of the next word.
_ESCAPED_SPACE = re.compile(r"\\[nrt]")
# Schema keywords that contain values of the described property, such as its default.
_SCHEMA_VALUES = frozenset({"default", "const", "enum", "examples", "value"})
_OF_SERVERS = ("headers", "server_url")
_ORIGIN = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?:(?P<user>[^/?#]*)@)?(?P<host>[^/?#@]*)")
_DATA_URL = re.compile(r"\bdata:(?P<type>[\w/+.-]{0,64}(?:;[\w=.+-]{1,64}){0,4}),(?P<data>[\w+/%=.~-]{8,})")
_STREAM_STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
_STREAM_BLANK = b"\xef\xbb\xbf\r\n "
# Matches the text to be replaced. Line breaks are left unchanged, because they have a different length in JSON inside
# JSON.
_MASKED = re.compile(r"\\+[nr]|[^\r\n\\]+|\\+")
_CONSTANTS = frozenset({"null", "true", "false", "None", "True", "False"})
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DIGIT = re.compile(r"[0-9]")


class Redactor:
    """Hides the secrets in one exchange.

    Secrets that were found in headers and queries (see ``learn``) are also hidden in all text that is processed later.
    """

    def __init__(self) -> None:
        self._learned: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._short_defaults: list[re.Pattern[str]] = []
        # The redacted forms of short texts. The events in a stream repeat the same few texts.
        self._seen: dict[str, str] = {}

    # -- learning secrets --

    def learn(self, headers: Iterable[tuple[str, str]], path: str) -> None:
        """Remember secrets that must not occur anywhere: credentials in headers, and secret parameters in a path."""
        for name, value in headers:
            if is_secret_parameter(name):
                self._note(_credentials(name.lower(), value))
        for name, _, value in _parameters(path):
            if is_secret_parameter(unquote_plus(name)):
                self._note([unquote_plus(value)])
        self._compile()

    def _compile(self) -> None:
        forms = {
            form for secret in self._learned for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
        }
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._seen = {}

    def learn_schemas(self, document: Any) -> None:
        """Remember the secrets in tool schemas, such as a key's default, because the manifest repeats them as text.

        A short secret is hidden only where it follows the name of its property.
        """
        found = {pair for pair in _schema_secrets(document) if pair[1] and pair[1] != HIDDEN}
        self._note(secret for _, secret in found)
        self._short_defaults = [_default_of(name, secret) for name, secret in found if len(secret) < _MIN_LEARNED]
        self._compile()

    def _note(self, secrets: Iterable[str]) -> None:
        self._learned.update(secret for secret in secrets if len(secret) >= _MIN_LEARNED and secret != HIDDEN)

    # -- hiding secrets --

    def headers(self, fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return headers with secrets hidden. Headers that only describe the machine or the connection are omitted."""
        kept = []
        for name, value in fields:
            lower = name.lower()
            if lower in DROPPED_HEADERS or lower.startswith(DROPPED_PREFIXES):
                continue
            if lower == "user-agent":
                product = re.match(r"\S*(?: v?\d[\w.]*)?", value)  # The rest of a User-Agent describes the machine.
                value = product[0] if product else ""
            harmless = lower in KEPT_HEADERS or lower.startswith(KEPT_PREFIXES)
            kept.append((name, self.text(value) if harmless else HIDDEN))
        return kept

    def path(self, path: str) -> str:
        """Return a path and its query, with the values of secret parameters hidden."""
        plain, mark, _ = path.partition("?")
        fields = []
        for name, equals, value in _parameters(path):
            plain_value = unquote_plus(value)
            if is_secret_parameter(unquote_plus(name)):
                value = "x" * len(value)
            elif (clean := self.text(plain_value)) != plain_value:
                value = quote(clean, safe="")
            fields.append(f"{name}{equals}{value}")
        return f"{self.text(plain)}{mark}{'&'.join(fields)}"

    def text(self, text: str) -> str:
        """Return text with secrets hidden. Its length stays the same."""
        if len(text) > _MAX_CACHED:
            return self._hide(text)
        if text not in self._seen:
            self._seen[text] = self._hide(text)
        return self._seen[text]

    def _hide(self, text: str) -> str:
        spans = list(self._spans(text))
        if not spans:
            return text
        characters, done = [], 0
        for start, end in sorted(spans):
            if end <= done:
                continue
            start = max(start, done)
            characters += [text[done:start], _masked(text[start:end])]
            done = end
        return "".join([*characters, text[done:]])

    def value(self, value: Any) -> Any:
        """Return JSON data with secrets hidden, or the same object if it contains no secrets."""
        return self._walk(value, self.text)

    def body(self, data: bytes, content_type: str) -> bytes:
        """Return a body (JSON, an event stream, or other text) with secrets hidden.

        Never raises an exception.
        """
        text = data.decode("utf-8", "surrogateescape")
        try:
            is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
            # Some servers declare a stream as JSON.
            if is_stream or data.lstrip(_STREAM_BLANK).startswith(_STREAM_STARTS):
                return edit_stream(data, self.text, self.value, self.text)
            if '"logprob"' in text and too_deep(text):
                # The body is dropped, because its logprobs can contain secrets that are split across tokens, and the
                # document is nested too deeply for the tokens to be joined.
                return b"{}"
            document = parse_json(text)
            # The tokens of logprobs are fragments of a longer text. Other fields of a non-streamed body contain
            # complete texts.
            joined = edit_pieces([document], self.text) if '"logprob"' in text else set()
            clean = self.value(document)
        except RecursionError:
            document = None
        if document is None:
            return self.text(text).encode("utf-8", "surrogateescape")
        return data if clean is document and not joined else dump(clean).encode()

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        if self._known is not None:
            for found in self._known.finditer(text):
                yield found.span()
        for short in self._short_defaults:
            for found in short.finditer(text):
                yield found.span("secret")
        text = _ESCAPED_SPACE.sub("  ", text)
        for _, pattern in PATTERNS:
            for found in pattern.finditer(text):
                yield found.span("secret")
        yield from _elements(text)
        for found in _DATA_URL.finditer(text):
            if any(self._spans(_data_of(found))):
                yield found.span("data")
        position = 0
        while (named := _NAMED.search(text, position)) is not None:
            # The search continues directly after the name, because the value of a harmless name can begin with the name
            # of a secret.
            position = named.end()
            if not is_secret_name(named["name"]):
                continue
            if named["list"]:
                for start, end in _items(text, position):
                    yield start, end
                    position = end
                continue
            if named["open"]:
                end = _end_of_string(text, position, named["open"])
            elif (bare := _BARE.match(text, position)) is not None:
                end = bare.end()
            else:
                continue
            yield position, end
            position = end

    def _walk(self, value: Any, text: Callable[[str], str], name: str = "", *, secret: bool = False) -> Any:
        """Return ``value`` with secrets hidden, or the same object if it contains none.

        If ``secret`` is true, all strings in ``value`` are secrets.
        """
        match value:
            case EditedStr():
                return value
            case str():
                clean = _masked(value) if secret else text(value)
                return value if clean == value else clean
            case list():
                items = [self._walk(item, text, name, secret=secret) for item in value]
                return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
            case dict():
                fields = {key: self._field(value, key, text, name) for key in value}
                return fields if any(fields[key] is not value[key] for key in value) else value
        return value

    def _field(self, parent: dict[str, Any], key: str, text: Callable[[str], str], parent_name: str) -> Any:
        value = parent[key]
        if parent.get("type") == "mcp" and key in _OF_SERVERS:
            return _for_server(value)
        secret = is_secret_name(key) and not isinstance(value, dict)
        if key == "token" and "logprob" in parent:
            secret = False  # In logprobs, "token" contains a token of the model's text rather than a secret.
        if key in _SCHEMA_VALUES and is_secret_name(parent_name):
            secret = not isinstance(value, dict)  # An object is the schema of a secret, not a secret.
        return self._walk(value, text, key, secret=secret)


def _for_server(value: Any) -> Any:
    """Hide data that is only for an MCP server, since it may contain keys: all headers, or a URL's user and path."""
    if isinstance(value, dict):
        return {name: "x" * len(item) if isinstance(item, str) else HIDDEN for name, item in value.items()} or value
    found = _ORIGIN.match(value) if isinstance(value, str) else None
    if found is None:
        return value
    user = "" if found["user"] is None else "x" * len(found["user"]) + "@"
    rest = value[found.end() :]
    clean = found["scheme"] + user + found["host"] + ("/" + "x" * (len(rest) - 1) if rest.strip("/") else rest)
    return value if clean == value else clean


def _data_of(url: re.Match[str]) -> str:
    """Return the decoded text of a data URL, or "" if the URL contains binary data."""
    try:
        if url["type"].endswith(";base64"):
            return base64.b64decode(url["data"] + "===", altchars=b"-_" if "-" in url["data"] else None).decode()
        return unquote(url["data"], errors="strict")
    except ValueError:
        return ""


def _elements(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of the contents of elements that have a secret's name, such as ``<password>…</password>``.

    Elements with child elements are left out.
    """
    opened: dict[str, int] = {}
    latest = ""
    for found in _TAG.finditer(text):
        if found["closed"] is None:
            latest = _TAG_END.split(found[0].rpartition("<")[2], 1)[0]
            opened.pop(latest, None)
            if is_secret_name(found["name"]):
                opened[latest] = found.end()
            continue
        # If no element with this name is open, the last opened element ends here, because models sometimes forget to
        # close it.
        start, end = opened.get(found["closed"]) or opened.get(latest), found.start()
        opened.clear()
        if start is None:
            continue
        rest = text[start:end].lstrip().removeprefix("<![CDATA[")
        if content := rest.rstrip().removesuffix("]]>"):
            start = end - len(rest)
            yield start, start + len(content)


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of the strings in a list that begins before ``start``.

    Stop at the first value that is not a string.
    """
    while (item := _ITEM.match(text, start)) is not None:
        end = _end_of_string(text, item.end(), item["open"])
        yield item.end(), end
        start = end + len(item["open"])


def _masked(secret: str) -> str:
    if secret in _CONSTANTS:
        return secret
    return _DIGIT.sub("1", secret) if _NUMBER.fullmatch(secret) else _MASKED.sub(_mask, secret)


def _mask(found: re.Match[str]) -> str:
    return found[0] if found[0][0] == "\\" and found[0][-1] in "nr" else "x" * len(found[0])


def _end_of_string(text: str, start: int, opening: str) -> int:
    """Return the position of a string's closing quote.

    Quotes with more backslashes than the opening quote are part of the string.
    """
    for found in _CLOSE[opening[-1]].finditer(text, start):
        if len(found[0]) <= len(opening):
            return found.start()
    return len(text)


def _credentials(name: str, value: str) -> Iterator[str]:
    """Yield the credentials in the value of a header."""
    if name.endswith("cookie"):
        for pair in value.split(";"):
            yield pair.partition("=")[2].strip(' \t"')
        return
    scheme, _, token = value.strip().partition(" ")
    yield token.strip() or scheme
    if scheme.lower() == "basic":
        try:
            yield base64.b64decode(token, validate=True).decode().partition(":")[2]
        except ValueError:
            return


def _default_of(name: str, secret: str) -> re.Pattern[str]:
    """Return a pattern that matches the default value of a property in any manifest:

    "pin": <string, default "1234">         "pin":{"type":"string","default":"1234"}
    """
    property_, value = (re.escape(json.dumps(text, ensure_ascii=False)[1:-1]) for text in (name, secret))
    between = r"""(?:(?!"default":|default ").){0,2000}?"""
    return re.compile(rf'"{property_}":\s?[<{{]{between}(?:"default":|default )"(?P<secret>{value})"', re.DOTALL)


def _schema_secrets(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of each property that contains a secret, with each string that its schema specifies as a value."""
    match value:
        case dict():
            if value.get("type") == "mcp" and isinstance(headers := value.get("headers"), dict):
                for header, secret in headers.items():
                    found = _credentials(header.lower(), secret) if isinstance(secret, str) else ()
                    yield from ((header, credential) for credential in found)
            for key, member in value.items():
                if key in _SCHEMA_VALUES and is_secret_name(name):
                    yield from ((name, text) for text in _strings(member))
                elif isinstance(member, dict | list):
                    yield from _schema_secrets(member, key)
        case list():
            for item in value:
                yield from _schema_secrets(item, name)


def _strings(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]


def _parameters(path: str) -> Iterator[tuple[str, str, str]]:
    for field in path.partition("?")[2].split("&"):
        yield field.partition("=")
