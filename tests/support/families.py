"""The page on model families: the known call forms of each family, and whether toolsim recognizes them.

``make families`` writes ``addon/docs/families.md``, and raises the minimum rates ("floors") in
``tests/cases/malformed_floors.json``.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from support.malformed import CHANGES, FORMS, TOOLS, Form, is_read, rates
from toolsim.parsing import Parsed, parse

CASES = Path(__file__).parents[1] / "cases"
PAGE = Path(__file__).parents[2] / "addon" / "docs" / "families.md"
FLOORS = CASES / "malformed_floors.json"
_ANY, _OTHER = "any model", "another form"


def load(name: str) -> dict[str, Any]:
    """Return the cases in the table with this name."""
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


REPORTED: list[dict[str, Any]] = load("reported")["cases"]


def wanted(case: dict[str, Any]) -> dict[str, Any]:
    """Return the calls and prose that toolsim should find.

    The bug report specifies them, unless the case records a different decision.
    """
    return case.get("decision", case)  # type: ignore[no-any-return]


def calls_wanted(case: dict[str, Any]) -> list[str]:
    """Return the expected calls as JSON text with sorted keys, in which 1 differs from 1.0 and from true."""
    return [json.dumps(call, sort_keys=True) for call in wanted(case)["calls"]]


def calls(parsed: Parsed) -> list[str]:
    """Return the calls in an answer as JSON text with sorted keys."""
    return [json.dumps([call.name, json.loads(call.arguments)], sort_keys=True) for call in parsed.calls]


def is_right(case: dict[str, Any], parsed: Parsed) -> bool:
    """Return whether an answer has the expected calls and prose.

    If no call is expected, the prose must equal the original text.
    """
    if not wanted(case)["calls"]:
        return not parsed.calls and parsed.prose == case["text"]
    # Whitespace next to a call is not compared, because bug reports do not specify it.
    return calls(parsed) == calls_wanted(case) and parsed.prose.split() == wanted(case)["prose"].split()


@cache
def measured() -> dict[str, dict[str, Counter[str]]]:
    """Return the number of malformed texts with each outcome, by call form and kind of change."""
    return {form.form: rates(form) for form in FORMS}


def floors() -> dict[str, dict[str, dict[str, int]]]:
    """Return the current floors: the numbers of texts with the outcomes ``right``, ``part`` and ``other``, by call form
    and kind of change.
    """
    return {
        form: {
            change: {name: found[name] for name in ("right", "part", "other")} for change, found in by_change.items()
        }
        for form, by_change in measured().items()
    }


def raised(old: dict[str, dict[str, dict[str, int]]]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the current floors, but keep each floor in ``old`` that is better.

    The number of correctly parsed texts never falls. The numbers of texts that are parsed in part, or as other calls,
    never rise.
    """
    new = floors()
    for form, changes in new.items():
        for change, floor in changes.items():
            former = old.get(form, {}).get(change, floor)
            floor["right"] = max(floor["right"], former["right"])
            for name in ("part", "other"):
                floor[name] = min(floor[name], former.get(name, floor[name]))
    return new


def dumped(table: dict[str, dict[str, dict[str, int]]]) -> str:
    """Return floors as JSON, with one line for each kind of change."""
    forms = [
        f" {json.dumps(form, ensure_ascii=False)}: {{\n"
        + ",\n".join(f"  {json.dumps(change)}: {json.dumps(floor)}" for change, floor in changes.items())
        + "\n }"
        for form, changes in table.items()
    ]
    return "{\n" + ",\n".join(forms) + "\n}\n"


# -- the page


def page() -> str:
    """Return the text of the page on model families."""
    right = sum(is_right(case, parse(case["text"], case["tools"])) for case in REPORTED)
    return _HEAD.format(table=_families(), right=right, total=len(REPORTED)) + "\n".join(
        ["", _open_cases(), "", _decisions(), "", _malformed(), ""]
    )


_HEAD = """# Model families

Find your model's family in the table to see whether toolsim recognizes its calls. If the model's server supports the
model's call form, the server itself converts the calls to API calls. The table matters if the model's text reaches
toolsim unchanged, for example because the server received no tools.

`make families` generates this page from the test cases, and a test checks that the page is current. The table has these
columns:

- **Documented**: "yes" if toolsim parses both one call and two calls in the form that the model's chat template
  documents.
- **Cases**: how many of toolsim's own test cases for the form pass. Some of these texts only mention the form.
- **Reported**: how many reported outputs toolsim parses as expected. Users of model servers and agent
  programs reported these outputs between May and September 2026. For all families together, toolsim parses {right} of
  {total} reported outputs as expected, including texts that only mention calls.
- **Malformed**: the percentage of malformed calls that toolsim still parses as the correct calls. These are documented
  calls with one marker doubled, dropped, halved or misspelled, or with whitespace moved. *Wrong* means that
  toolsim finds different calls. [Malformed markers](#malformed-markers) lists all outcomes.

[marker_forms.json](../../tests/cases/marker_forms.json) contains an example of each form, and
[reported.json](../../tests/cases/reported.json) contains each reported output with its source.

## Forms by family

{table}

## Custom forms

If you trained your model yourself, or if its family is not listed, the model might write its calls between markers that
toolsim does not recognize. Declare these markers in a [profile](profiles.md) for the model. Add one `[[forms]]` table
for each form:

```toml
models = ["my-model*"]

[[forms]]
opening = "@@CALL"
closing = "@@END"
body = "json"
keys = {{ name = "fn", arguments = "with" }}
```

With this profile, toolsim treats `@@CALL {{"fn": "get_weather", "with": {{"city": "Oslo"}}}} @@END` in an answer of
`my-model` as a call. The same rules apply to custom forms as to built-in forms, in streamed and non-streamed answers:
the tool's schema, `toolsim_repair` and `toolsim_untagged`. Text between the markers that is not a call stays text.
`toolsim tune` keeps the `[[forms]]` tables of an existing profile.

The [parser library](parsing.md) also accepts custom forms:
`parse(text, tools, forms=[{{"opening": "@@CALL", "closing": "@@END"}}])`.

- `opening` and `closing` are literal texts of 3 to 64 characters on one line. The first character must not be a letter,
  a digit, or one of ``{{}}()"'`,:;.+-_|\\``.
- `body` is the format of the text between the markers; the default, `any`, accepts all of these formats:

| body | example |
|---|---|
| `json` | `{{"name": "f", "arguments": {{"k": "v"}}}}`, or a list of them |
| `named` | `f {{"k": "v"}}` |
| `python` | `f(k="v")`, or `[f(k="v"), g()]` |
| `elements` | `<function=f><parameter=k>v</parameter></function>`, `<name>f</name><k>v</k>` |
| `pairs` | `f<arg_key>k</arg_key><arg_value>v</arg_value>` |
| `braces` | `call:f{{k:"v"}}` |

- `keys` defines additional keys for the name and the arguments in a `json` body.

If a profile contains a mistake, startup fails with a message that names the file and the line:
`my-model.toml:6: body: got 'xml', expected one of any, json, …`.
"""


def _families() -> str:
    forms = {form.form: form for form in FORMS}
    rows = {(family, form.form) for form in FORMS for family in form.families}
    rows |= {(case["family"], case.get("form", _OTHER)) for case in REPORTED if "family" in case}
    lines = ["| family | form | documented | cases | reported | malformed |", "|---|---|---|---|---|---|"]
    order = {name: place for place, name in enumerate([*forms, _OTHER])}
    last = ""
    for family, name in sorted(rows, key=lambda row: (row[0] == _ANY, row[0].casefold(), order[row[1]])):
        form = forms.get(name)
        reported = [case for case in REPORTED if case.get("family") == family and case.get("form", _OTHER) == name]
        cells = [
            "" if family == last else family,
            _code(name) if form else name,
            "" if form is None else "yes" if is_read(form) else "**not yet**",
            _own_cases(form) if form else "",
            _share([is_right(case, parse(case["text"], case["tools"])) for case in reported]),
            _share_malformed(form) if form else "",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
        last = family
    return "\n".join(lines)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _share(results: list[bool]) -> str:
    return f"{sum(results)} of {len(results)}" if results else ""


@cache
def _own() -> list[tuple[str, bool]]:
    """Return the name of each case in ``call_forms.json``, and whether toolsim recognizes its calls."""
    found: list[tuple[str, bool]] = []
    for case in load("call_forms")["cases"]:
        expected = [[item[1], item[2]] for item in case["items"] if item[0] == "call"]
        seen = [[call.name, json.loads(call.arguments)] for call in parse(case["text"], TOOLS).calls]
        found.append((case["case"], seen == expected))
    return found


def _own_cases(form: Form) -> str:
    return _share([right for name, right in _own() if any(name.startswith(start) for start in form.cases)])


def _share_malformed(form: Form) -> str:
    total: Counter[str] = sum(measured()[form.form].values(), Counter())
    wrong = f", {total['other']} wrong" if total["other"] else ""
    return f"{100 * total['right'] // total.total()}%{wrong}" if total else ""


def _open_cases() -> str:
    lines = [
        "## Reported outputs that toolsim does not parse as expected yet",
        "",
        "| output | family | what toolsim does | source |",
        "|---|---|---|---|",
    ]
    for case in REPORTED:
        parsed = parse(case["text"], case["tools"])
        if is_right(case, parsed):
            continue
        surplus = [call for call in calls(parsed) if call not in calls_wanted(case)]
        does = (
            "finds another call"
            if surplus
            else "finds the calls, but leaves markup"
            if calls(parsed)
            else "passes it on as text"
        )
        if calls(parsed) and not surplus and len(calls(parsed)) < len(calls_wanted(case)):
            does = "finds some of the calls"
        family = case.get("family", "text about calls")
        lines.append(f"| {_code(_short(case['text']))} | {family} | {does} | {case['source']} |")
    return "\n".join(lines)


def _short(text: str) -> str:
    line = " ".join(text.replace("`", "'").split())
    return line if len(line) <= 70 else f"{line[:69]}…"


def _decisions() -> str:
    lines = [
        "## Reported outputs that intentionally stay text",
        "",
        "The users who reported these outputs expected calls. For the reasons in the table, toolsim passes the outputs",
        "on as text.",
        "",
        "| output | reason | source |",
        "|---|---|---|",
    ]
    lines += [
        f"| {_code(_short(case['text']))} | {case['decision']['reason']} | {case['source']} |"
        for case in REPORTED
        if "decision" in case
    ]
    return "\n".join(lines)


def _malformed() -> str:
    lines = [
        "## Malformed markers",
        "",
        "The table shows totals over all forms, by kind of change. A call after an unreadable call never runs.",
        "",
        "- *marker left*: the calls run, but a marker stays in the text.",
        "- *one of two*: only the first of two calls runs, because the client receives this call before the second",
        "  call turns out to be unreadable.",
        "- *text*: all calls stay text.",
        "- *wrong*: toolsim finds different calls.",
        "",
        "| change | texts | right | marker left | one of two | text | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for change in CHANGES:
        found: Counter[str] = sum((by_change.get(change, Counter()) for by_change in measured().values()), Counter())
        counts = " | ".join(str(found[name]) for name in ("right", "leftover", "part", "text", "other"))
        lines.append(f"| {change} | {found.total()} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    """Write the page and the floors. No floor becomes worse."""
    old = json.loads(FLOORS.read_text(encoding="utf-8")) if FLOORS.exists() else {}
    FLOORS.write_text(dumped(raised(old)), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
