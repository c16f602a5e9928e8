"""Profiles: settings for specific models, in one TOML file per model, which ``toolsim tune`` writes::

    models = ["qwen2.5-coder-1.5b*"]

    [options]
    toolsim_second_opinion = "on"

    [[forms]]
    opening = "@@CALL"
    closing = "@@END"

    [tuned]
    toolsim = "0.2.0"
    engine = "llama.cpp"

1. *Selection.* The profile whose matching pattern has the most literal characters applies. Among equal matches, the
   user's folder takes precedence over toolsim's own. Profiles are not combined.
2. *Precedence.* A profile overrides defaults. It never overrides an option that was set explicitly, even to its default
   value.
3. *Application.* ``Policy.for_model`` applies the profile to the operator's values, once for each request. No other
   code handles profiles.
4. *Invalid files* prevent startup, with a one-line message that names the file and line, because applying only part of
   a profile could have the wrong effect. A profile measured with another version or engine might still be better than
   none, so it applies, with a warning that is logged once.

``[tuned]`` may contain any figures that justify the choices; only the two entries above are read. toolsim 0.2 called
this table ``[learned]``, which is still read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from mitmproxy.exceptions import OptionsError

from toolsim.command_line import nearest
from toolsim.core.custom_forms import InvalidForm, read_forms
from toolsim.core.policy import Policy, Profile
from toolsim.proxy.legacy import current_name, current_value
from toolsim.proxy.options.option import PREFIX
from toolsim.proxy.options.settings import Settings, policy_fields
from toolsim.proxy.options.table import OPTIONS
from toolsim.version import __version__

SUFFIX = ".toml"
_OFF = dict.fromkeys(("untagged", "repair", "second_opinion"), "off")
_STRICT_TAGS = _OFF | {"history": "bracketed", "manifest": "schemas"}
# Options that depend on the model, because they affect its prompts or the parsing of its answers.
_NAMES = ("manifest", "history", "mode", "constrain", "second_opinion", "untagged", "repair")
_OPTIONS = {option.full_name: option for option in OPTIONS if option.name in _NAMES}
_PARTS = ("models", "options", "forms", "tuned")


def with_profiles(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return settings with the selected profiles.

    Raises OptionsError if a profile is invalid. The message names the file and the line.
    """
    try:
        found = read_profiles(settings.profiles, environment, settings.by_hand)
    except ValueError as problem:
        raise OptionsError(f"toolsim_profiles: {problem}") from problem  # type: ignore[no-untyped-call]
    return replace(settings, policy=replace(settings.policy, known_profiles=found))


def read_profiles(word: str, environment: Mapping[str, str], by_hand: Collection[str] = ()) -> tuple[Profile, ...]:
    """Return the profiles that ``word``, the value of ``toolsim_profiles``, selects.

    Options in ``by_hand``, which the operator set explicitly, are removed from the profiles.

    Raises ValueError if a profile is invalid. The message names the file and the line.
    """
    if word == "off":
        return ()
    if word == "strict-tags":
        return (Profile(word, ("*",), _fields(_STRICT_TAGS, by_hand)),)
    folders: list[Traversable] = [Path(word).expanduser()]
    if word == "auto":
        folders = [own_folder(environment), files("toolsim") / "profiles"]
    elif not folders[0].is_dir():
        raise ValueError(f"got {word!r}, expected auto, off, strict-tags or an existing folder")
    found: list[Profile] = []
    for folder in folders:
        entries = folder.iterdir() if folder.is_dir() else ()
        found += [_read(file, by_hand) for file in sorted(entries, key=str) if file.name.endswith(SUFFIX)]
    return tuple(found)


def own_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's profile folder, even if the folder does not exist."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "toolsim" / "profiles"


def profile_warning(profile: Profile, engine: str) -> str:
    """Return the reason why a profile might not suit an ``engine`` or this version of toolsim.

    Return "" if the profile suits both or has no effect.
    """
    if not profile.fields:
        return ""
    others = [f"toolsim {profile.toolsim}"] if profile.toolsim not in ("", __version__) else []
    if profile.engine not in ("", "unknown", engine) and engine != "unknown":
        others.append(f"{profile.engine}, not {engine}")
    return f"it was measured with {' and '.join(others)}" if others else ""


def line_of(text: str, name: str, start: int = 0) -> int:
    """Return the number of the line in TOML ``text`` that sets a name or begins the table with that name.

    The search begins at the offset ``start``. If the name is missing, return the line number of this offset.
    """
    found = re.compile(rf"""^[ \t]*\[*["']?{re.escape(name)}\b""", re.MULTILINE).search(text, start)
    return text.count("\n", 0, found.start() if found else start) + 1


def _line_in_form(text: str, wrong: InvalidForm) -> int:
    """Return the line number of an entry in a ``[[forms]]`` table, or of the table itself if the entry is missing."""
    tables = [found.start() for found in re.finditer(r"^[ \t]*\[\[[ \t]*forms[ \t]*\]\]", text, re.MULTILINE)]
    if wrong.number >= len(tables):
        return line_of(text, "forms")
    start, *others = tables[wrong.number :]
    return line_of(text[: others[0]] if others else text, wrong.entry, start)


def _read(file: Traversable, by_hand: Collection[str]) -> Profile:
    text = ""
    try:
        text = file.read_text("utf-8")
        document = tomllib.loads(text)
        return _profile(file.name.removesuffix(SUFFIX), document, by_hand)
    except OSError as problem:
        raise ValueError(f"{file}: {problem.strerror}") from problem
    except _Wrong as wrong:
        raise ValueError(f"{file}:{line_of(text, wrong.name)}: {wrong.name}: {wrong}") from wrong
    except InvalidForm as wrong:
        line = _line_in_form(text, wrong)
        raise ValueError(f"{file}:{line}: {wrong.entry}: {wrong.message}") from wrong
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        place = re.search(r"line (\d+)", str(problem))
        raise ValueError(f"{file}:{place[1] if place else 1}: not TOML: {problem}") from problem


class _Wrong(Exception):
    """An invalid entry in a profile."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _profile(name: str, document: Mapping[str, Any], by_hand: Collection[str]) -> Profile:
    if surplus := [part for part in document if part not in (*_PARTS, "learned")]:
        raise _Wrong(surplus[0], f"unknown key{nearest(surplus[0], _PARTS)}; expected one of {', '.join(_PARTS)}")
    models = document.get("models")
    if not (isinstance(models, list) and models and all(isinstance(model, str) and model for model in models)):
        raise _Wrong("models", f"got {models!r}, expected a list of model name patterns")
    values: dict[str, Any] = {}
    for written, given in _table(document, "options").items():
        option = PREFIX + current_name(written.removeprefix(PREFIX))
        value = current_value(option.removeprefix(PREFIX), given)
        if option not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise _Wrong(
                option, f"a profile cannot set this option{nearest(option, _OPTIONS)}; expected one of {known}"
            )
        try:
            values[option.removeprefix(PREFIX)] = _OPTIONS[option].checked(_OPTIONS[option].from_yaml(value))
        except ValueError as problem:
            raise _Wrong(option, str(problem)) from problem
    tuned = _table(document, "tuned") or _table(document, "learned")
    engine, version = tuned.get("engine", ""), tuned.get("toolsim", "")
    for part, value in (("engine", engine), ("toolsim", version)):
        if not isinstance(value, str):
            raise _Wrong(part, f"got {value!r}, expected a string")
    forms = document.get("forms", [])
    if not (isinstance(forms, list) and all(isinstance(form, dict) for form in forms)):
        raise _Wrong("forms", f"got {forms!r}, expected tables that begin with the line [[forms]]")
    declared = (("forms", read_forms(forms)),) if forms else ()
    return Profile(name, tuple(models), (*_fields(values, by_hand), *declared), engine, version)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise _Wrong(name, f"got {table!r}, expected a table")
    return table


def _fields(values: Mapping[str, Any], by_hand: Collection[str]) -> tuple[tuple[str, Any], ...]:
    kept = {name: value for name, value in values.items() if name not in by_hand}
    return tuple((name, value) for name, value in policy_fields(kept).items() if name in Policy.__dataclass_fields__)
