"""The models file: its entries, its errors with file and line, and reloading."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
from support.each import each
from toolsim.proxy.address import Upstream
from toolsim.proxy.options.models_file import ModelEntry, ModelsFile, entry_for, names_line, read_entries

LOCAL = Upstream("http", "127.0.0.1", 11434, "/v1")
SERVER = Upstream("https", "llm.example.com", 443, "/v1")
GOOD = """\
# Small ones stay here.
[[models]]
names = ["haiku*", "claude-haiku-4-5"]
url = "http://127.0.0.1:11434/v1"
model = "qwen2.5-coder:1.5b"

[[models]]
names = "gpt-5*"
url = "https://llm.example.com/v1/"
key = "env:LLM_KEY"
"""
ENVIRONMENT = {"LLM_KEY": "sk-secret", "SPACED": "a b", "EMPTY": ""}
ENTRIES = (
    ModelEntry(("haiku*", "claude-haiku-4-5"), LOCAL, "qwen2.5-coder:1.5b"),
    ModelEntry(("gpt-5*",), SERVER, "", "sk-secret"),
)
ONE = '[[models]]\nnames = ["a*"]\nurl = "http://x"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "models.toml"
    file.write_text(GOOD)
    return file


def write(file: Path, text: str) -> None:
    """Write the models file and advance its modification time, because the clock's resolution might be too low to show
    the change.
    """
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


def test_entries_are_read(file: Path) -> None:
    assert read_entries(file, ENVIRONMENT) == ENTRIES
    assert names_line(ENTRIES) == "haiku*, claude-haiku-4-5, gpt-5*"
    assert [entry.literal_names for entry in ENTRIES] == [("claude-haiku-4-5",), ()]


@each(
    ("model", "number"),
    [
        ("haiku", 0),
        ("haiku-4.5", 0),
        ("claude-haiku-4-5", 0),
        ("claude-haiku-4-5-20251001", None),
        ("Haiku", None),
        ("gpt-5", 1),
        ("gpt-5.1-codex", 1),
        ("gpt-4", None),
        ("a\nhaiku", None),
        ("", None),
    ],
    ids=lambda case: repr(case),
)
def test_matching_entry_is_selected(model: str, number: int | None) -> None:
    assert entry_for(ENTRIES, model) == (None if number is None else ENTRIES[number])


def test_first_entry_takes_precedence() -> None:
    first, last = ModelEntry(("gpt-5-mini",), LOCAL), ModelEntry(("gpt-*",), SERVER)
    assert entry_for((first, last), "gpt-5-mini") is first
    assert entry_for((first, last), "gpt-5") is last


@each(
    ("written", "key"),
    [('key = ""', ""), ('key = "sk-1"', "sk-1"), ("", None), ('key = "env:LLM_KEY"', "sk-secret")],
    ids=lambda case: repr(case),
)
def test_keys_are_read(tmp_path: Path, written: str, key: str | None) -> None:
    file = tmp_path / "models.toml"
    file.write_text(ONE + written)
    (entry,) = read_entries(file, ENVIRONMENT)
    assert entry.key == key
    assert not key or key not in repr(entry)


MISTAKES = {
    "nothing": ("", 1, "models: expected at least one table"),
    "no table": ("models = 3", 1, "models: expected at least one table"),
    "an inline table": ('\nmodels = [{names = "a"}]', 2, "url: got None"),
    "another part": (ONE + '[model]\nx = "y"', 4, "model: unknown key; did you mean models?"),
    "another entry": (ONE + 'modle = "y"', 4, "modle: unknown key; did you mean model?"),
    "no names": ('[[models]]\nurl = "http://x"', 1, "names: got None"),
    "an empty name": ('[[models]]\nurl = "http://x"\nnames = ["a", ""]', 3, "names: got ['a', '']"),
    "names of another type": ('[[models]]\nurl = "http://x"\nnames = 5', 3, "names: got 5"),
    "no url": (ONE + '[[models]]\nnames = "b"', 4, "url: got None"),
    "a url without a scheme": ('[[models]]\nnames = "b"\nurl = "localhost:1"', 3, "did you mean http://localhost:1?"),
    "a url of another kind": ('[[models]]\nnames = "b"\nurl = "ftp://x"', 3, "expected a URL"),
    "an empty model": (ONE + 'model = ""', 4, "model: got ''"),
    "a model of another type": (ONE + "model = 1", 4, "model: got 1"),
    "a key of another type": (ONE + "key = 1", 4, "key: expected a string"),
    "a key of the second entry": (ONE + '[[models]]\nnames="b"\nurl="http://x"\nkey="env:NO"', 7, "'NO' is not set"),
    "an empty variable": (ONE + 'key = "env:EMPTY"', 4, "'EMPTY' is not set"),
    "a variable with a space": (ONE + 'key = "env:SPACED"', 4, "'SPACED' has characters"),
    "a key with a line break": (ONE + r'key = "a\nb"', 4, "key: it has characters"),
    "a name twice": (ONE + '[[models]]\nnames = "a*"\nurl = "http://y"', 5, "'a*' is unreachable"),
    "a covered name": (ONE + '[[models]]\nurl = "http://y"\nnames = ["b", "ab?"]', 6, "'ab?' is unreachable"),
    "not TOML": (ONE + "key =", 4, "not TOML"),
}


@each("name", MISTAKES)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, name: str) -> None:
    """Each mistake in the models file is reported in one line with the file and the line number."""
    text, line, words = MISTAKES[name]
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}:{line}: ") as problem:
        read_entries(file, ENVIRONMENT)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_keys_are_never_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    for text in (ONE + 'key = "sk-se cret"', ONE + 'key = ["sk-secret"]', ONE + 'key = "sk-secret"\nx = 1'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r":[45]: ") as problem:
            read_entries(file, ENVIRONMENT)
        assert "sk-se" not in str(problem.value)


def test_overlapping_patterns_are_accepted(tmp_path: Path) -> None:
    """An entry can overlap with an earlier one, as ``gpt?`` and ``gpt*`` do, unless the earlier pattern matches every
    name that the later one matches.
    """
    for earlier, later in (("gpt?", "gpt*"), ("gpt-[ab]", "gpt-*"), ("gpt-5", "gpt-*"), ("*-mini", "gpt-*")):
        file = tmp_path / "models.toml"
        file.write_text("".join(f'[[models]]\nnames = "{name}"\nurl = "http://x"\n' for name in (earlier, later)))
        assert len(read_entries(file, {})) == 2


def test_names_of_one_entry_can_overlap(tmp_path: Path) -> None:
    """A pattern and a literal name that it matches can be in the same entry. The literal name is still listed for
    clients.
    """
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nnames = ["*", "big"]\nurl = "http://x"\n')
    assert read_entries(file, {})[0].literal_names == ("big",)


def test_changed_file_applies_to_the_next_request(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    models = ModelsFile(file, ENVIRONMENT)
    assert models.current() == ENTRIES
    assert models.current() is models.current()
    write(file, ONE)
    assert [entry.names for entry in models.current()] == [("a*",)]
    assert models.current()
    assert [record.getMessage() for record in caplog.records] == [f"toolsim_models: reloaded {file}: a*"]


@pytest.mark.parametrize("broken", ["[[models", "", ONE + 'key = "env:NO"'])
def test_broken_version_is_ignored(file: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the new version of the models file has an error, the previous version remains in use, and the log names the
    line.
    """
    models = ModelsFile(file, ENVIRONMENT)
    write(file, broken)
    for _ in range(3):
        assert models.current() == ENTRIES
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"toolsim_models: {file}:")
    assert line.endswith("; the previous version stays in use")
    write(file, ONE)
    assert [entry.names for entry in models.current()] == [("a*",)]


def test_deleted_file_stays_in_use(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the models file is deleted, the previous version remains in use until the file exists again."""
    models = ModelsFile(file, ENVIRONMENT)
    file.unlink()
    assert models.current() == models.current() == ENTRIES
    assert [record.getMessage() for record in caplog.records] == [
        f"toolsim_models: {file}: cannot be read: No such file or directory; the previous version stays in use"
    ]
    write(file, ONE)
    assert [entry.names for entry in models.current()] == [("a*",)]


def test_replaced_file_is_detected(file: Path, tmp_path: Path) -> None:
    """A new version of the models file is detected even if its size and modification time are unchanged. Editors and
    Kubernetes replace a file instead of overwriting it.
    """
    models = ModelsFile(file, ENVIRONMENT)
    other = tmp_path / "other.toml"
    other.write_text(GOOD.replace("haiku", "mouse"))
    os.utime(other, ns=(file.stat().st_mtime_ns,) * 2)
    other.rename(file)
    assert models.current()[0].names == ("mouse*", "claude-mouse-4-5")


def test_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        ModelsFile(tmp_path / "missing.toml", {})


def test_documented_file_is_valid(tmp_path: Path) -> None:
    """The example on the documentation page is a valid models file."""
    page = (Path(__file__).parents[4] / "addon" / "docs" / "backends.md").read_text()
    (example,) = re.findall(r"^```toml\n(# models\.toml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "models.toml"
    file.write_text(example)
    local, large = read_entries(file, ENVIRONMENT)
    assert (local.model, local.key, large.key) == ("qwen2.5-coder:1.5b", "", "sk-secret")
