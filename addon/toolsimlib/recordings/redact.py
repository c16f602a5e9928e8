"""Secrets out of an exchange before it is written: by rules, in one table.

1. A text keeps its length: what is hidden becomes as many ``x``. So a stream's text can be put together, searched, and
   cut again where it was cut: a key that arrived in ten deltas is found.
2. The same secret is hidden on both sides in the same way, so that a stored exchange still replays.
3. Headers are the other way round: what is not known to be harmless is hidden, since anyone may invent a header.
4. JSON that holds no secret stays as it is, to the byte.

Every pattern is bounded: time is linear in the text.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote_plus

from toolsimlib.wire.json_codec import dump

HIDDEN = "[redacted]"

# A secret shorter than this may be an ordinary word: it is hidden where it stands, not wherever its letters occur.
_LEARNT = 8
_SHORT = 200

KEPT_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "access-control-allow-headers",
        "access-control-allow-methods",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "allow",
        "cache-control",
        "content-encoding",
        "content-type",
        "openai-beta",
        "openai-processing-ms",
        "openai-version",
        "origin",
        "retry-after",
        "retry-after-ms",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "vary",
        "www-authenticate",
        "x-proxy-output-mode",
        "x-should-retry",
    }
)
"""Headers whose values stay (after the rules for texts); so do those that begin with one of ``KEPT_PREFIXES``."""
KEPT_PREFIXES = ("x-toolsim-", "x-ratelimit-")

DROPPED_HEADERS = frozenset(
    {
        "age",
        "alt-svc",
        "connection",
        "date",
        "etag",
        "expires",
        "forwarded",
        "keep-alive",
        "last-modified",
        "nel",
        "report-to",
        "server",
        "server-timing",
        "toolsim-token",
        "traceparent",
        "tracestate",
        "via",
        "x-client-request-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "x-request-id",
    }
)
"""Headers that tell of a machine, a connection or a time, and of nothing else."""
DROPPED_PREFIXES = ("x-stainless-", "cf-", "sec-")

SECRET_NAME = re.compile(
    r"(?:(?:api|access|secret|private|subscription|signing|account|master|encryption|client|auth|functions)_?keys?"
    r"|passwords?|passwd|passphrase|pwd|secrets?|token|(?:access|auth|refresh|session|bearer)_?tokens"
    r"|authorization|credentials?|cookie|bearer)$"
)
"""Names, in snake case, of fields, parameters and headers that hold secrets."""
# "key" alone is too common a word for a field; but as a parameter of a URL it is Google's, and many a header ends so.
_SECRET_PARAMETER = re.compile(r"(?:^|_)(?:key|sig|signature|code|sid|auth|session)$")

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("OpenAI and its kin", re.compile(r"\bsk-(?P<secret>[\w-]{8,512})")),
    (
        "other vendors",  # whose prefixes are common enough as words: with a digit, or it is a tool's name
        re.compile(r"\b(?:[spr]k|sess|gsk|hf|xai|pplx|nvapi|r8|glpat)[-_](?=[\w-]{0,64}\d)(?P<secret>[\w-]{8,512})"),
    ),
    ("GitHub", re.compile(r"\b(?:gh[pousr]|github_pat)_(?P<secret>\w{8,512})")),
    (
        "vendors of long keys",
        re.compile(
            r"\b(?:npm|pypi|dckr_pat|whsec|do[opr]_v1|shp(?:at|ca|pa|ss)|ntn|lin_api|GOCSPX|xapp|hv[sbr]|SG)[-_.]"
            r"(?=[\w.-]{0,64}\d)(?P<secret>[\w.-]{20,1024})"
        ),
    ),
    ("hexadecimal keys", re.compile(r"\b(?:dapi|SK|AC)(?P<secret>[0-9a-f]{32})\b")),
    ("Telegram", re.compile(r"\b\d{8,10}:(?P<secret>AA[\w-]{32,34})\b")),
    ("web hooks", re.compile(r"(?i:hooks\.slack\.com/\w+|/api/webhooks)/(?P<secret>[\w/-]{8,512})")),
    ("Slack", re.compile(r"\bxox[a-z]-(?P<secret>[\w-]{8,512})")),
    ("Google", re.compile(r"\b(?:AIza|ya29\.)(?P<secret>[\w-]{8,1024})")),
    ("AWS", re.compile(r"\b(?:AKIA|ASIA)(?P<secret>[A-Z0-9]{12,128})\b")),
    (
        "JSON web token",
        re.compile(r"(?<![\w-])eyJ(?P<secret>[\w-]{6,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096})?)"),
    ),
    ("bearer", re.compile(r"\b(?i:bearer)(?:[ \t+]|%20){1,4}(?P<secret>[\w.~+/=-]{8,8192})")),
    ("basic", re.compile(r"\b(?i:basic)[ \t]{1,4}(?=[\w+/]{0,64}[\d=+/])(?P<secret>[\w+/=-]{8,8192})")),
    (
        "authorization of any scheme",
        re.compile(
            r"\b(?i:authorization)\\*[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\*[\"']?(?:[A-Za-z][\w-]{0,31}[ \t]{1,4})?"
            r"(?P<secret>[^\s\"'`\\<>{}\[\](),]{4,8192}(?:,[ \t]{0,4}\w{1,32}=[^\s\"'`\\<>,]{1,1024}){0,16})"
        ),
    ),
    (
        "cookies",
        re.compile(r"\b(?i:cookie):[ \t]{0,4}(?P<secret>[^\s;\"'\\]{2,4096}(?:;[ \t]{0,4}[^\s;\"'\\]{1,4096}){0,64})"),
    ),
    (
        "user of curl",
        re.compile(r"(?<!\S)(?:-u|--user)[ =]\\*[\"']?(?P<secret>[^\s\"':\\]{1,64}:[^\s\"'\\]{4,256})"),
    ),
    (  # of which the password may hold "@"
        "user and password of a URL",
        re.compile(r"\b(?i:[a-z][a-z0-9+.-]{1,20})://(?P<secret>[^\s/\"'<>\\]{1,256})@"),
    ),
    (
        "parameter of a URL",
        re.compile(
            r"[?&#](?i:(?:[\w.-]{0,64}[_.-])?(?:key|sig|signature|code|sid|auth|session))="
            r"(?P<secret>[^\s&#\"'<>\\]{8,4096})"
        ),
    ),
    (
        "private key",
        re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?P<secret>(?:[^-]|-(?!----))++)"),
    ),
)
"""Texts that are secrets by their looks; the group ``secret`` is hidden."""

# A named value in a text, which may be JSON inside of JSON: any number of backslashes before each quote. What goes on
# like the rest of a document is no value: the quote was the end of a label, such as "Password:".
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z][\w.-]{0,63})(?:\\*[\"'`]|\*{1,2})?"
    r"(?:\s{0,8}(?:=>|:=|[:=])\s{0,8}(?P<open>\\*[\"'`])(?!\s{0,8}(?:[,:}\])]|\\*[\"'`]))"
    r"|(?:[ \t]{0,4}(?:=>|:=|=)|:)[ \t]{0,4}(?=[^\s\"'`&;,<>\\{\[(]))"
)
_BARE = re.compile(r"[^\s\"'`&;,<>\\{\[(]{4,8192}")
_TAGGED = re.compile(
    r"<(?:[\w.-]{1,64}:)?(?P<name>[A-Za-z][\w.-]{0,63})(?:\s[^<>]{0,256})?>(?:<!\[CDATA\[)?(?P<secret>[^<>]{1,65536})>?</"
)
_CLOSE = {quote: re.compile(rf"\\*{quote}") for quote in "\"'`"}

# White space in JSON inside of JSON: its letter would stand right before the next word.
_ESCAPED_SPACE = re.compile(r"\\[nrt]")
# Line ends stay: JSON inside of JSON writes them longer, and both sides of an exchange shall stay alike.
_MASKED = re.compile(r"\\+[nr]|[^\r\n\\]+|\\+")

# Strings that a stream sends piece by piece.
_PIECES = frozenset({"delta", "content", "text", "arguments", "input", "refusal", "reasoning", "reasoning_content"})
_PLACE = ("type", "item_id", "output_index", "content_index", "summary_index")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Tell whether a field, parameter or header of this name holds a secret."""
    return SECRET_NAME.search(_snake(name)) is not None


@lru_cache(maxsize=4096)
def _is_secret_parameter(name: str) -> bool:
    """Tell whether a parameter of a URL, or a header, holds a secret: there shorter names do than in a field."""
    return is_secret_name(name) or _SECRET_PARAMETER.search(_snake(name)) is not None


def _snake(name: str) -> str:
    lower = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name[-128:]).lower()
    return re.sub(r"[^a-z0-9]+", "_", lower).strip("_")


class Redactor:
    """Hides the secrets of one exchange.

    What headers and queries reveal as a secret (``learn``) is hidden in all texts afterwards.
    """

    def __init__(self) -> None:
        self._learnt: set[str] = set()
        self._known: re.Pattern[str] | None = None
        # The events of a stream say the same few things over and over.
        self._seen: dict[str, str] = {}

    # -- learning --

    def learn(self, headers: Iterable[tuple[str, str]], path: str) -> None:
        """Take note of what must not occur anywhere: credentials in headers, and in a path's query."""
        for name, value in headers:
            if _is_secret_parameter(name):
                self._note(_credentials(name.lower(), value))
        for name, _, value in _parameters(path):
            if _is_secret_parameter(unquote_plus(name)):
                self._note([unquote_plus(value)])
        forms = {form for each in self._learnt for form in (each, json.dumps(each)[1:-1], quote(each, safe=""))}
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._seen = {}

    def _note(self, secrets: Iterable[str]) -> None:
        self._learnt.update(each for each in secrets if len(each) >= _LEARNT and each != HIDDEN)

    # -- hiding --

    def headers(self, fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return headers without secrets, and without what only tells of the machine."""
        kept = []
        for name, value in fields:
            lower = name.lower()
            if lower in DROPPED_HEADERS or lower.startswith(DROPPED_PREFIXES):
                continue
            if lower == "user-agent":
                product = re.match(r"\S*(?: v?\d[\w.]*)?", value)  # What follows tells of the machine.
                value = product[0] if product else ""
            harmless = lower in KEPT_HEADERS or lower.startswith(KEPT_PREFIXES)
            kept.append((name, self.text(value) if harmless else HIDDEN))
        return kept

    def path(self, path: str) -> str:
        """Return a path with its query, whose secret parameters are hidden."""
        plain, mark, _ = path.partition("?")
        fields = []
        for name, equals, value in _parameters(path):
            plain_value = unquote_plus(value)
            if _is_secret_parameter(unquote_plus(name)):
                value = "x" * len(value)
            elif (clean := self.text(plain_value)) != plain_value:
                value = quote(clean, safe="")
            fields.append(f"{name}{equals}{value}")
        return f"{self.text(plain)}{mark}{'&'.join(fields)}"

    def text(self, text: str) -> str:
        """Return a text of the same length without secrets."""
        if len(text) > _SHORT:
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
            characters += [text[done:start], _MASKED.sub(_mask, text[start:end])]
            done = end
        return "".join([*characters, text[done:]])

    def value(self, value: Any) -> Any:
        """Return plain data without secrets: the very object if it holds none."""
        return self._walk(value, self.text)

    def body(self, data: bytes, content_type: str) -> bytes:
        """Return a body without secrets: JSON, an event stream, or any other text; never raises."""
        text = data.decode("utf-8", "surrogateescape")
        try:
            if content_type.partition(";")[0].strip().lower() == "text/event-stream":
                return self._stream(data)
            document = parse_json(text)
            # Elsewhere than in tokens, texts of a whole body are whole.
            joined = self._join([document]) if '"logprob"' in text else set()
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
        text = _ESCAPED_SPACE.sub("  ", text)
        for _, pattern in PATTERNS:
            for found in pattern.finditer(text):
                yield found.span("secret")
        for found in _TAGGED.finditer(text):
            if is_secret_name(found["name"]):
                yield found.span("secret")
        position = 0
        while (named := _NAMED.search(text, position)) is not None:
            # The value of a harmless name may hold a name that is none.
            position = named.end()
            if not is_secret_name(named["name"]):
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
        """Return ``value`` itself where nothing is hidden; ``secret``: strings here are secrets."""
        match value:
            case str():
                clean = "x" * len(value) if secret else text(value)
                return value if clean == value else clean
            case list():
                items = [self._walk(each, text, name, secret=secret) for each in value]
                return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
            case dict():
                fields = {key: self._field(value, key, text, name) for key in value}
                return fields if any(fields[key] is not value[key] for key in value) else value
        return value

    def _field(self, parent: dict[str, Any], key: str, text: Callable[[str], str], parent_name: str) -> Any:
        value = parent[key]
        secret = is_secret_name(key) and not isinstance(value, dict)
        if key == "token" and "logprob" in parent:
            secret = False  # A piece of the model's text.
        if key in ("default", "const", "enum", "examples", "value") and is_secret_name(parent_name):
            secret = not isinstance(value, dict)  # A schema for a secret.
        return self._walk(value, text, key, secret=secret)

    def _stream(self, data: bytes) -> bytes:
        # Of bytes: in a str U+2028 would be a line end too.
        lines = [line.decode("utf-8", "surrogateescape") for line in data.splitlines(keepends=True)]
        documents = [parse_json(line[5:]) if line.startswith("data:") else None for line in lines]
        touched = self._join(documents)
        return b"".join(
            self._line(lines[number], document, number in touched) for number, document in enumerate(documents)
        )

    def _join(self, documents: Iterable[Any]) -> set[int]:
        """Hide in place the secrets of texts that come in pieces; return the numbers of the documents it changed."""
        texts: dict[tuple[Any, ...], list[tuple[int, dict[str, Any], str]]] = defaultdict(list)
        for number, document in enumerate(documents):
            for place, owner, key in pieces(document):
                texts[place].append((number, owner, key))
        touched: set[int] = set()
        for owners in texts.values():
            whole = "".join(owner[key] for _, owner, key in owners)
            clean = self.text(whole)
            start = 0
            for number, owner, key in owners:
                end = start + len(owner[key])
                if whole[start:end] != clean[start:end]:
                    owner[key] = clean[start:end]
                    if "bytes" in owner:
                        owner["bytes"] = None  # They spell a token again.
                    touched.add(number)
                start = end
        return touched

    def _line(self, line: str, document: Any, touched: bool) -> bytes:
        if document is None:
            return self.text(line).encode("utf-8", "surrogateescape")
        clean = self.value(document)
        if clean is document and not touched:
            return line.encode("utf-8", "surrogateescape")
        return b"data: " + dump(clean).encode() + line[len(line.rstrip("\r\n")) :].encode()


def pieces(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], str]]:
    """Yield an event's strings that come in pieces, as place, owner and key: pieces of one text have one place."""
    match value:
        case dict():
            if "logprob" in value and isinstance(value.get("token"), str):
                yield (*place, "token"), value, "token"
            mark = tuple([mark for key in _PLACE if not isinstance(mark := value.get(key), dict | list)])
            for key, each in value.items():
                if isinstance(each, str) and key in _PIECES:
                    yield (*place, *mark, key), value, key
                elif isinstance(each, dict | list):
                    yield from pieces(each, (*place, *mark, key))
        case list():
            for position, each in enumerate(value):
                index = each.get("index", position) if isinstance(each, dict) else position
                if isinstance(each, dict) and "logprob" in each and place[-1:] != ("top_logprobs",):
                    index = 0  # Tokens that stand side by side are one text.
                yield from pieces(each, (*place, index if isinstance(index, int) else position))


def _mask(found: re.Match[str]) -> str:
    return found[0] if found[0][0] == "\\" and found[0][-1] in "nr" else "x" * len(found[0])


def _end_of_string(text: str, start: int, opening: str) -> int:
    """Return where a quoted value ends: at a quote that is escaped no more often than its opening one."""
    for found in _CLOSE[opening[-1]].finditer(text, start):
        if len(found[0]) <= len(opening):
            return found.start()
    return len(text)


def _credentials(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a header's value."""
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


def _parameters(path: str) -> Iterator[tuple[str, str, str]]:
    for field in path.partition("?")[2].split("&"):
        yield field.partition("=")


def parse_json(text: str) -> Any:
    """Return the JSON object or array in a text, None if there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None
