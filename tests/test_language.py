"""Tests for the language of code, pages and help: docstrings, sentence length, existing names, and glossary words.

The glossary is on the contributors' page (addon/docs/develop.md). Each word that it has replaced has a budget: the
number of its remaining uses. Lower the budget when you remove uses, and never raise it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from mutants.__main__ import MODULES as MUTATED
from support.mitmdump import ROOT
from toolsim.cli.main import parser
from toolsim.proxy.legacy import RENAMED
from toolsim.proxy.options.option import PREFIX
from toolsim.proxy.options.table import OPTIONS

PACKAGE = ROOT / "addon" / "toolsim"
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "addon" / "docs").glob("*.md")))
PAGES = (*PAGES, "addon/toolsim/README.md")
HISTORY = "addon/docs/changes.md"
"""The changelog, which contains names of earlier versions."""


def sources(*folders: str) -> Iterator[Path]:
    """Yield the Python files of these folders."""
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts)


# -- docstrings

QUESTIONS = re.compile(r"(What|Who|Whose|Which|How|Where|When|Why|Whatever|Whoever)\b")


def test_module_docstrings_are_noun_phrases_or_begin_with_a_verb() -> None:
    """No module docstring begins with a question word, such as "Which" or "How"."""
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in sources("addon", "tests")}
    assert [str(path.relative_to(ROOT)) for path, text in docstrings.items() if QUESTIONS.match(text)] == []


# -- sentences

MAX_WORDS = 30
MAX_LONG_SHARE = 0.08
"""Maximum share of sentences with more than 30 words on a page."""


def sentences(page: str) -> list[str]:
    """Return the sentences of a page, without code blocks, tables and headings. Inline code counts as one word."""
    text = re.sub(r"^ *(`{3,}).*?^ *\1\s*$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"<summary>.*?</summary>|</?details>", "\n\n", text)
    # List items, and the lines before and after a table or heading, belong to separate paragraphs.
    text = re.sub(r"^\s*(?:\||#).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        words = re.sub(r"`[^`]*`", "`code`", " ".join(paragraph.split()))
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
        found += filter(None, re.split(r"(?<=[.!?])[)*\"”]*\s+(?=[A-Z`*\"“(\[]|toolsim\b)", words))
    return found


def is_long(sentence: str) -> bool:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split()) > MAX_WORDS


@pytest.mark.parametrize("page", PAGES)
def test_few_sentences_are_long(page: str) -> None:
    """On each page, at most 8% of the sentences have more than 30 words."""
    all_of_them = sentences((ROOT / page).read_text())
    long = [sentence for sentence in all_of_them if is_long(sentence)]
    assert len(long) <= MAX_LONG_SHARE * len(all_of_them), "\n".join(long)


def test_sentence_counting() -> None:
    """Code, tables and headings do not count as sentences. Each list item is a separate sentence."""
    page = "# Head\n\nOne `a b c`. Two.\n\n| a table |\n|---|\n\n```sh\nSome code. More.\n```\n"
    page += "\n- three\n- four, see [a\n  link](x.md#y)\n"
    assert sentences(page) == ["One `code`.", "Two.", "three", "four, see a link"]
    assert is_long("word " * 31)
    assert not is_long("word " * 30 + "– –")


# -- names


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY])
def test_files_named_by_pages_exist(page: str) -> None:
    """Each module or file that a page names exists in the package or in the repository."""
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|json|yaml|yml|toml|flow|cfg))`", (ROOT / page).read_text()):
        assert (PACKAGE / name).exists() or (ROOT / name).exists() or any(PACKAGE.rglob(name)), name


PLAIN = set(
    re.findall(
        r"\w+",
        "the only request data that the answer side uses; ends streams; hooks; tools on offer, choice, limits, "
        "first id, history; client body, backend bytes",
    )
)
"""Words in diagrams that do not name code."""


@pytest.mark.parametrize("page", ["addon/docs/lifecycle.md", "addon/toolsim/README.md"])
def test_stages_of_diagrams_exist(page: str) -> None:
    """Each word in a diagram is the name of a module, package, class or function, or is listed in ``PLAIN``."""
    text = (ROOT / page).read_text()
    [diagram] = [block for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if "─▶" in block]
    known = {path.stem for path in PACKAGE.rglob("*.py")} | {path.parent.name for path in PACKAGE.rglob("*.py")}
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    known |= set(re.findall(r"^ *(?:class|def) (\w+)", source, re.MULTILINE))
    assert sorted(set(re.findall(r"\w+", diagram.replace("─", " "))) - known - PLAIN) == []


def test_modules_of_mutation_tests_exist() -> None:
    """The modules and tests of ``make mutation`` exist, as do the modules in the example of ``make help``."""
    [example] = re.findall(r'\(MODULES="([\w ]+)"\)', (ROOT / "Makefile").read_text())
    assert set(example.split()) <= set(MUTATED)
    files = [PACKAGE / f"{file}.py" for target in MUTATED.values() for file in target.files]
    tests = [ROOT / test for target in MUTATED.values() for test in (*target.tests, target.package)]
    assert [str(path) for path in (*files, *tests) if not path.exists()] == []


def help_texts() -> str:
    """Return the help texts of all options and commands."""
    commands = [
        action for action in parser()._actions if hasattr(action, "choices") and isinstance(action.choices, dict)
    ]
    texts = [each.format_help() for action in commands for each in action.choices.values()]
    return "\n".join([*(option.help for option in OPTIONS), parser().format_help(), *texts])


def test_documented_settings_exist() -> None:
    """Each ``toolsim_NAME=VALUE`` in help texts and on pages names an existing option and one of its values."""
    by_name = {option.full_name: option for option in OPTIONS}
    pages = "\n".join((ROOT / page).read_text() for page in PAGES if page != HISTORY)
    found = re.findall(r"\b(toolsim_[a-z_]+)=([a-z][\w-]*)", f"{help_texts()}\n{pages}")
    assert found
    for name, value in found:
        assert name in by_name, name
        if choices := by_name[name].choices:
            assert value in choices, f"{name}={value}"
    renamed = {PREFIX + name for name in RENAMED}
    assert set(re.findall(r"\btoolsim_[a-z_]+[a-z]\b", help_texts())) <= set(by_name) - renamed


# -- words

BUDGET: dict[str, int] = {
    "house": 0,
    "rooms?": 29,
    "wings?": 0,
    "guests?": 1,
    "doors?": 4,
    "circle": 1,
    "in words": 65,
    "in_words": 13,
    "endable": 0,
    "spelt": 0,
    "mend(?:s|ed|ing)?": 12,
    "anew": 5,
    "for ever": 0,
    "whoever": 0,
    "nor": 39,
    "noes": 0,
    "beside": 21,
    "dialects?": 41,
    "catalogues?": 0,
    "once more": 7,
    "of its own accord": 0,
    "asked again": 3,
    "begun": 51,
    "lest": 0,
    "ledger": 0,
    "guardian": 0,
    "whatever": 8,
    "nothing but": 1,
    "as ever": 0,
    "told": 56,
}
"""The number of remaining uses of each word that the glossary or the style guide has replaced. Keys are patterns."""

EXCEPTIONS = (
    # These files may contain former names of options and headers.
    "addon/toolsim/proxy/legacy.py",
    HISTORY,
    # This file contains the list of replaced words.
    "tests/test_language.py",
)


@cache
def lowered() -> dict[str, str]:
    """Return the text of each file in lower case, by name."""
    files = [*sources("addon", "tests"), *(ROOT / page for page in PAGES), ROOT / "Makefile"]
    texts = {str(path.relative_to(ROOT)): path.read_text().lower() for path in files}
    return {name: text for name, text in texts.items() if name not in EXCEPTIONS}


def uses(word: str) -> dict[str, int]:
    """Return the number of uses of a word, by file. An underscore counts as the end of a word."""
    # A pattern that begins with letters is searched several times as fast as one that begins with a lookbehind.
    pattern = re.compile(rf"{word}(?![a-z])")
    counted = {
        name: sum(not text[found.start() - 1].isalpha() for found in pattern.finditer(text, 1))
        for name, text in lowered().items()
    }
    return {name: count for name, count in counted.items() if count}


@pytest.mark.parametrize("word", BUDGET)
def test_replaced_words_stay_within_budget(word: str) -> None:
    """No replaced word has more uses than its budget allows."""
    found = uses(word)
    assert sum(found.values()) <= BUDGET[word], found
