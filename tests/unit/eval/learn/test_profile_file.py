"""Tests for the profile that a tuning session generates. The proxy can read it, and it contains the measurements on
which it is based.
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from toolsim.core.policy import most_specific_profile
from toolsim.eval.learn import profile_file, question_bank
from toolsim.eval.learn.decisions import Setting
from toolsim.eval.learn.memory import Spent
from toolsim.eval.learn.rule import Comparison
from toolsim.eval.learn.session import Choice, TuningResult
from toolsim.proxy.options.profiles import read_profiles
from toolsim.version import __version__

SPENT = Spent(requests=122, input_tokens=12200, output_tokens=1220, seconds=90, answers=116)
HERMES = Setting(manifest="hermes", second_opinion="on")


def course(ended: str = "") -> TuningResult:
    compared = Comparison(8, pairs=12, wins=10)
    preferred = Choice("form", Setting(manifest="hermes"), Setting(), "preferred", compared)
    refused = Choice("form", Setting(mode="native"), Setting(), "unavailable", Comparison(8), 'HTTP 500: "no"\n')
    return TuningResult(HERMES, [preferred, refused], ended)


@pytest.mark.parametrize("model", ["qwen2.5:0.5b", "org/Model[1]*?", 'a"b\\c', "ä\x7f"])
def test_profile_applies_to_its_model_only(tmp_path: Path, model: str) -> None:
    """The proxy applies a generated profile only to its own model, regardless of the characters in the model's name."""
    file = tmp_path / profile_file.file_name(model)
    assert profile_file.write(file, profile_file.text(model, "llama.cpp", course(), SPENT))
    (found,) = read_profiles(str(tmp_path), {})
    assert dict(found.fields) == {"manifest": "hermes", "second_opinion": "on"}
    assert (found.engine, found.toolsim) == ("llama.cpp", __version__)
    assert most_specific_profile((found,), model) == found
    assert most_specific_profile((found,), f"{model}x") is None
    assert most_specific_profile((found,), "org/Model1") is None


def test_no_two_models_share_a_file(tmp_path: Path) -> None:
    """Each model has a unique profile file. If the model's name is a valid file name, it is used unchanged."""
    models = ["模型", "*", "a/b", "a-b", "A-B", "a b", "", "-", "x" * 300, "x" * 301, "\ud800", "qwen2.5-0.5b"]
    names = [profile_file.file_name(model) for model in models]
    assert len(set(map(str.lower, names))) == len(models)
    assert profile_file.file_name("qwen2.5-0.5b") == "qwen2.5-0.5b.toml"
    for name in names:
        profile_file.check_place(tmp_path / "new" / name)
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        profile_file.check_place(tmp_path / "file" / "x.toml")


def test_profile_contains_its_evidence() -> None:
    """A profile contains the figures of each comparison, the cost of the tuning session, and whether the session was
    complete.
    """
    text = profile_file.text("m", "vllm", course(), SPENT, datetime(2026, 11, 25, tzinfo=UTC))
    learned = tomllib.loads(text)["tuned"]
    choices = learned.pop("choices")
    assert learned.pop("questions") == question_bank.fingerprint()
    assert learned == {
        "toolsim": __version__,
        "engine": "vllm",
        "date": "2026-11-25",
        "complete": True,
        "minutes": 1.5,
        "answers": 116,
        "requests": 122,
        "input_tokens": 12200,
        "output_tokens": 1220,
        "chance": 0.05,
    }
    assert choices[0] == {
        "what": "form",
        "tried": "manifest=hermes",
        "against": "defaults",
        "outcome": "preferred",
        "questions": 12,
        "won": 10,
        "lost": 0,
        "evidence": 186.09,
        "needed": 160.0,
    }
    assert choices[1]["why"] == 'HTTP 500: "no"\n'
    partial = tomllib.loads(profile_file.text("m", "vllm", course("the time limit was reached"), SPENT))["tuned"]
    assert (partial["complete"], partial["ended"]) == (False, "the time limit was reached")
    alone = tomllib.loads(profile_file.text("m", "vllm", course(), SPENT, only=["form"]))["tuned"]
    assert (alone["complete"], alone["only"]) == (False, ["form"])


def test_partial_profile_does_not_replace_a_complete_one(tmp_path: Path) -> None:
    """A complete profile replaces any existing file. A partial profile replaces only a partial or invalid profile."""
    file = tmp_path / "profiles" / "m.toml"
    part, whole = (profile_file.text("m", "vllm", course(ended), SPENT) for ended in ("interrupted", ""))
    assert profile_file.write(file, part)
    assert profile_file.write(file, part)
    assert profile_file.write(file, whole)
    assert not profile_file.write(file, part)
    assert file.read_text() == whole
    file.write_text("broken =")
    assert profile_file.write(file, part)
    assert [entry.name for entry in file.parent.iterdir()] == ["m.toml"]


def test_declared_forms_are_kept(tmp_path: Path) -> None:
    """Call forms that a person has added to a profile are kept when the profile is replaced."""
    file = tmp_path / "m.toml"
    file.write_text(
        'models = ["m"]\n\n[[forms]]\nopening = "@@CALL"\nclosing = "@@END"\nbody = "json"\nkeys = { name = "fn" }\n'
        '[[forms]]\nopening = "<<x>>"\nclosing = "<</x>>"\n'
    )
    before = dict(read_profiles(str(tmp_path), {})[0].fields)["forms"]
    assert profile_file.write(file, profile_file.text("m", "vllm", course(), SPENT))
    (found,) = read_profiles(str(tmp_path), {})
    assert dict(found.fields) == {"manifest": "hermes", "second_opinion": "on", "forms": before}
    assert len(before) == 2
