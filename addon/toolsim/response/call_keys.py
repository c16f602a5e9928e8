"""The keys of a call written as a JSON object. No other module lists these keys.

{"name": …, "arguments": …}          in any of the spellings below
{"function": …, "arguments": …}      the name as a string
{"function": {"name": …, …}}         a call within a wrapper
{"tool_calls": [{…}, …]}             a list of calls
"""

from __future__ import annotations

NAME_KEYS = ("name", "tool_name", "tool", "recipient_name")
ARGUMENTS_KEYS = ("arguments", "parameters", "params", "args", "input")
WRAPPER_KEYS = ("function", "custom", "function_call", "functionCall", "tool_call")
LIST_KEYS = ("tool_calls", "tool_uses")
OTHER_KEYS = ("type", "id", "call_id", "tool_call_id")

CALL_KEYS = frozenset((*NAME_KEYS, *ARGUMENTS_KEYS, *OTHER_KEYS))
"""The keys of one call. An object with other keys is either a call with additional data, or not a call at all."""

NAME_OR_WRAPPER_KEYS = frozenset((*NAME_KEYS, "function"))
"""Keys whose value is the tool's name if the value is a string."""


def _head(quote: str) -> str:
    wrapper, name = "|".join(WRAPPER_KEYS), "|".join(sorted(NAME_OR_WRAPPER_KEYS))
    return (
        rf"\{{\s*+(?:{quote}(?:{wrapper}){quote}\s*+:\s*+\{{\s*+)?{quote}(?:{name}){quote}\s*+:\s*+"
        rf"{quote}(?P<name>[^\"'\\]{{1,256}}){quote}"
    )


HEAD = _head('"')
"""A pattern for the beginning of a call, up to its name."""

HEAD_WITH_SLIPS = _head("[\"']")
"""A pattern like ``HEAD`` that also accepts single quotes instead of double quotes."""

ARGUMENTS = rf'"(?:{"|".join(ARGUMENTS_KEYS)})"\s*+:'
"""A pattern for the key of the arguments, which follows the name."""
