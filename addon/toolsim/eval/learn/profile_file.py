"""Writes the result of ``toolsim tune`` as a profile: the preferred options, and the figures that justify them."""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from toolsim.eval.learn import question_bank
from toolsim.eval.learn.memory import Spent
from toolsim.eval.learn.rule import ALPHA
from toolsim.eval.learn.session import Choice, TuningResult
from toolsim.proxy.options.option import PREFIX
from toolsim.version import __version__

SUFFIX = ".toml"
_MOST_CHARACTERS = 100


def file_name(model: str) -> str:
    """Return a unique file name for a model's profile. A hash is appended if the name has to be altered."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", model.lower()).strip("-.")[:_MOST_CHARACTERS]
    if plain != model:
        plain = "-".join(filter(None, (plain, sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:8])))
    return plain + SUFFIX


def check_place(path: Path) -> None:
    """Create the folder for a profile, and check that files can be written there. Raises OSError if they cannot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    part.touch()
    part.unlink()


def text(
    model: str,
    engine: str,
    result: TuningResult,
    spent: Spent,
    now: datetime | None = None,
    only: Sequence[str] = (),
    recorded: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a profile. ``only`` names the decisions that were made, or is empty if all of them were made.

    ``recorded`` contains figures about the recorded turns that were used as questions.
    """
    lines = [
        "# Settings for this model, as determined by `toolsim tune`. You can edit this file. models can have more",
        "# entries, including patterns with * and ?. If you remove an option, its default applies.",
        f"models = {_value([glob.escape(model)])}",
        "",
        "[options]",
        *(f"{PREFIX}{name} = {_value(value)}" for name, value in result.setting.changed().items()),
        "",
        "[tuned]",
        *_entries(
            {
                "toolsim": __version__,
                "engine": engine,
                "date": (now or datetime.now(UTC)).strftime("%Y-%m-%d"),
                "complete": not result.ended and not only,
                **({"only": list(only)} if only else {}),
                **({"ended": result.ended} if result.ended else {}),
                "minutes": round(spent.seconds / 60, 1),
                "answers": spent.answers,
                "requests": spent.requests,
                "input_tokens": spent.input_tokens,
                "output_tokens": spent.output_tokens,
                "questions": question_bank.fingerprint(),
                "chance": ALPHA,
                **(recorded or {}),
            }
        ),
    ]
    for choice in result.choices:
        lines += ["", "[[tuned.choices]]", *_entries(facts(choice))]
    return "\n".join(lines) + "\n"


def facts(choice: Choice) -> Mapping[str, Any]:
    """Return a comparison as JSON data. ``won`` and ``lost`` are the challenger's wins and losses."""
    compared = choice.comparison
    return {
        "what": choice.what,
        "tried": str(choice.challenger),
        "against": str(choice.incumbent),
        "outcome": choice.outcome,
        **({"why": choice.why} if choice.why else {}),
        "questions": compared.pairs,
        "won": compared.wins,
        "lost": compared.losses,
        "evidence": round(compared.evidence, 2),
        "needed": round(compared.boundary, 2),
    }


def write(path: Path, profile: str) -> bool:
    """Write a profile atomically. If the old profile is complete but the new one is not, do nothing and return False.

    The call forms in the old profile are retained. Raises OSError if the profile cannot be written.
    """
    old = _document(path)
    if not tomllib.loads(profile)["tuned"]["complete"] and _is_whole(old):
        return False
    for form in old.get("forms", ()):
        profile += "\n".join(["", "[[forms]]", *_entries(form)]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    part.write_text(profile, encoding="utf-8")
    part.replace(path)
    return True


def _part(path: Path) -> Path:
    return path.with_suffix(f".{os.getpid()}.part")


def _document(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _is_whole(document: Mapping[str, Any]) -> bool:
    tuned = document.get("tuned", document.get("learned", {}))
    return isinstance(tuned, dict) and tuned.get("complete") is True


def _entries(values: Mapping[str, Any]) -> Sequence[str]:
    return [f"{name} = {_value(value)}" for name, value in values.items()]


def _value(value: Any) -> str:
    """Return a value in TOML, which has JSON's syntax for strings (except DEL), numbers, booleans and lists."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_entries(value))} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
