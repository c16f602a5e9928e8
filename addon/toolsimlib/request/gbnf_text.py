"""Free text in a grammar, up to where it is a call: behind the opening tag, or at the start of the answer.

GBNF cannot say "not", so text is written out letter by letter: a rule for each state of a reader that looks for what
begins a call. In each state the next letter leads on, or back to plain text, and the text may end.

1. *The tag* may open anywhere. It has one ``<``: wherever another one comes, its first letter has been read.
2. *An untagged call* opens at the start of the answer alone, with a tool on offer:

       fence? "["? "{" "name": "…", "arguments":       fence := "```" "json"? newline; space between them is free

   Up to that colon it may become anything else: a list, code, JSON that the user asked for, a tool's own declaration.
   Behind it the answer is one that ``response/untagged.py`` takes for calls, and nothing else.
3. A state is one for all tools as far as their names begin alike, so a catalogue costs a rule for each letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from toolsimlib.request.gbnf_rules import Rules, literal, none_of

_SPACE = " \t\r\n"
# A space stands for any number of them.
_NAME = ' "name" : "'
_ARGUMENTS = ' , "arguments"'


class FreeText:
    """The rules of text until ``tagged``, the rule of what follows the opening tag; ``start`` is where it starts."""

    def __init__(self, rules: Rules, opening: str, tagged: str) -> None:
        self._rules = rules
        self.start = "text-0"
        for read, char in enumerate(opening):
            then = f"text-{read + 1}" if read + 1 < len(opening) else tagged
            others = none_of("<" if read == 0 else f"<{char}")
            again = "" if read == 0 else ' | "<" text-1'
            rules.set(f"text-{read}", f"( {others} text-0 | {literal(char)} {then}{again} )?")

    def begin_with_call(self, names: Set[str], named: str, more: str) -> None:
        """Let text start with a call of one of ``names``, which then has to go on as one.

        ``named``: the rule of a call from its tool's name on; ``more``: how many may follow, as a repetition, or "".
        """
        items, lines = (f"( {between} call ){more}" if more else "" for between in ('ws "," ws', '"\\n"'))
        other = self._other_name(names)

        def openers(end: str) -> dict[str, str]:
            item = self._chain(_NAME, f'( {named} {items} ws "]" {end} | {other} )')
            return {
                "{": self._chain(_NAME, f"( {named} {lines} {end} | {other} )"),
                "[": self._state({"{": item}, is_spaced=True),
            }

        fenced = self._state(openers('nl "```" nl'), is_spaced=True)
        language = self._state({"\n": fenced, "j": self._chain("son\n", fenced)})
        self.start = self._state({**openers("nl"), "`": self._chain("``", language)}, is_spaced=True)

    def _other_name(self, names: Set[str]) -> str:
        """Return the state behind the quote before a name: text, up to where it would be a call of one of ``names``."""
        # The colon is left to the rule of the call.
        behind = self._chain(_ARGUMENTS, self._state({":": ""}, is_spaced=True))
        beginnings = {name[:read] for name in names for read in range(len(name) + 1)}
        following: dict[str, dict[str, str]] = {each: {} for each in beginnings}
        for beginning in sorted(beginnings - {""}, key=lambda each: (-len(each), each)):
            ends = {'"': behind} if beginning in names else {}
            following[beginning[:-1]][beginning[-1]] = self._state(following[beginning] | ends)
        return self._state(following[""])

    def _chain(self, path: str, then: str) -> str:
        """Return the state before ``path``, at the end of which comes ``then``."""
        for index in reversed(range(len(path))):
            if path[index] != " ":
                then = self._state({path[index]: then}, is_spaced=index > 0 and path[index - 1] == " ")
        return then

    def _state(self, to: Mapping[str, str], *, is_spaced: bool = False) -> str:
        """Return a new state of text, from which some characters lead elsewhere; one that leads to "" cannot come."""
        state = self._rules.new()
        ways = [f"{literal(char)} {then}" for char, then in to.items() if then]
        if is_spaced:
            ways.append(f"[ \\t\\r\\n] {state}")
        others = none_of(f"{''.join(to)}<{_SPACE if is_spaced else ''}")
        self._rules.set(state, f'( {" | ".join(ways)}{" | " if ways else ""}{others} text-0 | "<" text-1 )?')
        return state
