"""The notation of llama.cpp's grammars (GBNF): named rules, literals, character classes."""

from __future__ import annotations

_MAX_RULES = 4000
"""More rules than any real catalogue needs; it stops a schema that refers to itself in ever new ways."""


class TooLarge(ValueError):
    """A grammar with more rules than a server would accept."""


class Rules:
    """Rules under construction, by name."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def set(self, name: str, body: str) -> None:
        """Set a rule. Raises TooLarge."""
        if len(self._rules) >= _MAX_RULES:
            raise TooLarge(f"expected at most {_MAX_RULES} rules")
        self._rules[name] = body

    def new(self) -> str:
        """Return a new name, whose rule is still to be set."""
        name = f"r{len(self._rules)}"
        self.set(name, "")
        return name

    def add(self, body: str) -> str:
        """Return the name of a new rule."""
        name = self.new()
        self._rules[name] = body
        return name

    def text(self) -> str:
        """Return the grammar."""
        return "\n".join(f"{name} ::= {body}" for name, body in self._rules.items()) + "\n"


def literal(text: str) -> str:
    """Return ``text`` as a literal of the grammar."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def none_of(chars: str) -> str:
    """Return the class of all characters but these."""
    escaped = (f"\\{char}" if char in "]\\^-" else char for char in chars)
    return f"[^{''.join(escaped)}]".replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
