"""Estimates the token counts of requests, and of answers that lack usage figures, without a tokenizer.

Tokenizers treat each class of characters similarly: a word is about one token regardless of its length, a run of
punctuation is a few tokens, and each digit is a token. The weights were fitted to Qwen2.5's tokenizer on Python,
Markdown, JSON and tool manifests, in samples of 2,000 characters. The estimate is 0.91 to 1.10 times the true count,
whereas the usual formula, one token per four bytes, yields 0.43 to 1.34 times the true count. Estimates for text in
scripts other than Latin are within 20% of the true count. Estimates for pure numbers are 25% too high.

Examining a megabyte takes 60 ms, which is too long for the event loop, so the estimate for a long text is based on
evenly spaced samples. For the same reason, a long request is not parsed. Instead, samples of its JSON are examined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from toolsim.core.events import Usage
from toolsim.wire.apis import APIS
from toolsim.wire.json_codec import dump, parse_object

# Weights by class of characters: tokens per run of such characters, and tokens per character.
_WEIGHTS: tuple[tuple[re.Pattern[str], float, float], ...] = (
    (re.compile(r"[A-Za-z]+"), 0.9, 0.027),
    (re.compile(r"[!-/:-@\[-`{-~]+"), 0.34, 0.3),
    (re.compile(r"[0-9]+"), 0.0, 1.7),
    (re.compile(r"\n\s*"), 1.5, 0.0),
    # Scripts without spaces between words (Chinese, Japanese, Korean), then the other alphabets of Europe and Asia,
    # then all other characters, such as accents and emoji.
    (re.compile("[\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7af\uff00-\uffef]+"), 0.0, 0.63),
    (re.compile("[\u0370-\u1fff]+"), 0.0, 0.43),
    (
        re.compile("[\u0080-\u036f\u2000-\u2fff\u3100-\u4dff\ua000-\uabff\ufb00-\ufeff\U00010000-\U0010ffff]+"),
        0.0,
        0.34,
    ),
)

# Maximum number of characters to examine, and the size of one sample.
_MAX_CHARS = 128 * 1024
_SAMPLE_CHARS = 2048

# Maximum size of a request to parse, in bytes, and a pattern for images and files in the JSON of longer requests.
_MAX_PARSED = 128 * 1024
_BASE64 = re.compile(r"[A-Za-z0-9+/]{120,}={0,2}")
_ESCAPE = re.compile(r'\\(?:([nrt])|(["\\/]))')

# Number of tokens that a chat template adds to each message.
_PER_MESSAGE = 4
_CONVERSATION = tuple(dict.fromkeys(key for api in APIS.values() for key in api.conversation_fields))
_DEMANDS = ("tools", "response_format", "text")


def estimated_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the number of tokens in a request in the format of any API. Images and files count as 0."""
    texts = [text for key in _CONVERSATION for text in _texts(body.get(key))]
    texts += [dump(body[key]) for key in _DEMANDS if body.get(key)]
    messages = sum(len(value) for key in _CONVERSATION if isinstance(value := body.get(key), list))
    return ceil(_tokens_of(texts) + _PER_MESSAGE * max(messages, 1))


def estimated_usage(sent: bytes, written: str) -> Usage:
    """Estimate the usage of an answer. ``sent`` is the request to the backend, and ``written`` is the text that the
    model wrote.
    """
    read = estimated_tokens(parse_object(sent) or {}) if len(sent) <= _MAX_PARSED else _sampled_tokens(sent)
    wrote = ceil(_tokens_of([written]))
    return Usage(read, wrote, read + wrote, estimated=True)


def _sampled_tokens(sent: bytes) -> int:
    """Estimate the tokens in a long request from samples of its JSON."""
    step = len(sent) * _SAMPLE_CHARS // _MAX_CHARS
    samples = [sent[start : start + _SAMPLE_CHARS] for start in range(0, len(sent), step)]
    texts = [_BASE64.sub("", sample.decode("utf-8", "ignore")) for sample in samples]
    weighed = sum(_tokens(_ESCAPE.sub(lambda found: "\n" if found[1] else found[2], text)) for text in texts)
    return ceil(weighed * len(sent) / sum(map(len, samples)))


def _tokens_of(texts: Sequence[str]) -> float:
    size = sum(map(len, texts))
    if size <= _MAX_CHARS:
        return sum(map(_tokens, texts))
    joined = "\n".join(texts)
    step = len(joined) * _SAMPLE_CHARS // _MAX_CHARS
    samples = [joined[start : start + _SAMPLE_CHARS] for start in range(0, len(joined), step)]
    return sum(map(_tokens, samples)) * len(joined) / sum(map(len, samples))


def _tokens(text: str) -> float:
    tokens = 0.0
    for pattern, of_run, of_character in _WEIGHTS:
        runs = pattern.findall(text)
        tokens += of_run * len(runs) + of_character * sum(map(len, runs))
    return tokens


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a conversation that the model sees, including texts in message parts."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for key in ("content", "text", "output", "name", "arguments", "function", "tool_calls"):
                yield from _texts(value.get(key))
