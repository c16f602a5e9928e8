"""Profiles: selection by model, precedence over defaults, and errors in profile files."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from mitmproxy.addonmanager import Loader
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options
from mitmproxy.test.tflow import tflow
from toolsim.core.policy import Policy, Profile, most_specific_profile
from toolsim.proxy.metadata import NOTE, policy_as_dict, recorded_policy
from toolsim.proxy.mitmproxy12.deferred import set_by_hand
from toolsim.proxy.options.profiles import profile_warning, read_profiles, with_profiles
from toolsim.proxy.options.settings import Settings, parse
from toolsim.proxy.options.table import OPTIONS, register
from toolsim.version import __version__

HERMES = 'models = ["qwen*"]\n\n[options]\ntoolsim_manifest = "hermes"\ntoolsim_second_opinion = "on"\n'


def own(tmp_path: Path, **texts: str) -> dict[str, str]:
    """Write a user's profile files, and return the environment variables that make toolsim find them."""
    folder = tmp_path / "toolsim" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def settings(environment: dict[str, str], *specs: str) -> Settings:
    """Return the settings that result from the given ``--set`` options and environment."""
    options = Options()
    register(Loader(SimpleNamespace(options=options)), {})
    options.set(*specs)
    given = set_by_hand(options)
    by_hand = frozenset(option.name for option in OPTIONS if option.full_name in given)
    made = parse(options)
    return with_profiles(
        Settings(policy=made.policy, profiles=made.profiles, by_hand=by_hand),
        environment,
    )


def changed(policy: Policy) -> set[str]:
    plain = settings({"XDG_CONFIG_HOME": "/nowhere"}, "toolsim_profiles=off").policy
    return {name for name in Policy.__dataclass_fields__ if getattr(policy, name) != getattr(plain, name)}


def test_profile_overrides_the_defaults(tmp_path: Path) -> None:
    """A profile overrides the defaults only for the models that it names, regardless of case."""
    policy = settings(own(tmp_path, small=HERMES)).policy
    used = policy.for_model("Qwen2.5-0.5B")
    assert (used.manifest, used.second_opinion, used.profile) == ("hermes", "on", "small")
    assert changed(used) == {"manifest", "second_opinion", "profile"}
    assert changed(policy.for_model("llama3")) == set()
    assert used.for_model("llama3") == used, "it is laid over once"
    assert policy.needs_rounds
    assert not policy.for_model("llama3").needs_rounds
    # A recording contains the policy in effect, rather than the profiles that could have applied.
    assert policy_as_dict(used).keys() - policy_as_dict(policy).keys() == {"manifest", "second_opinion", "profile"}


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"model": "qwen", "messages": []}', True),
        (b'{"messages": [], "model" : "llama3"}', False),
        (b'{"tools": [{"model": {"type": "string"}, "default": {"model": "qwen"}}], "model": "llama3"}', True),
        (b"\x1f\x8b compressed", True),
        (b'{"model": "\\u0071wen"}', True),
    ],
)
def test_body_is_parsed_in_advance_only_if_needed(body: bytes, may: bool, tmp_path: Path) -> None:
    """A request body is parsed in advance only if the options or the profile for its model could require several
    rounds.
    """
    policy = settings(own(tmp_path, small=HERMES)).policy
    assert policy.may_need_rounds(body) is may
    assert not settings({"XDG_CONFIG_HOME": "/nowhere"}, "toolsim_profiles=off").policy.may_need_rounds(body)
    assert settings(own(tmp_path), "toolsim_retry=1").policy.may_need_rounds(body)


@pytest.mark.parametrize("by_hand", ["toolsim_second_opinion=off", "toolsim_manifest=auto"])
def test_explicit_option_overrides_the_profile(tmp_path: Path, by_hand: str) -> None:
    """An explicitly set option overrides the profile, even if the option has its default value."""
    name, _, value = by_hand.removeprefix("toolsim_").partition("=")
    used = settings(own(tmp_path, small=HERMES), by_hand).policy.for_model("qwen")
    assert getattr(used, name) == value
    assert used.profile == "small"


def test_most_specific_pattern_takes_precedence() -> None:
    """If several patterns match a model, the pattern with the most literal characters applies. Between equally specific
    patterns, the user's profile takes precedence over a shipped one.
    """
    broad, near, same = (
        Profile(name, models) for name, models in (("a", ("*", "qwen*")), ("b", ("*0.5b*",)), ("c", ("qwen2.5-*",)))
    )
    assert most_specific_profile((broad, near, same), "qwen2.5-0.5b") == same
    assert most_specific_profile((broad, near), "qwen2.5-0.5b") == broad
    assert most_specific_profile((near, broad), "qwen2.5-0.5b") == near
    assert most_specific_profile((broad, Profile("d", ("QWEN*",))), "qwen") == broad
    assert most_specific_profile((near,), "qwen2.5-1.5b") is None
    assert most_specific_profile((), "qwen") is None


def test_profiles_can_be_off_or_from_a_folder(tmp_path: Path) -> None:
    """If ``toolsim_profiles`` is a folder, only the profiles in it are used. The value ``off`` disables all
    profiles.
    """
    environment = own(tmp_path, small=HERMES)
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    (elsewhere / "other.toml").write_text('models = ["llama*"]\n')
    assert read_profiles("off", environment) == ()
    assert [profile.name for profile in read_profiles(str(elsewhere), environment)] == ["other"]
    assert "small" in [profile.name for profile in read_profiles("auto", environment)]
    with pytest.raises(
        OptionsError, match="toolsim_profiles: got 'strict', expected auto, off, strict-tags or an exist"
    ):
        settings(environment, "toolsim_profiles=strict")


SHIPPED = {
    "qwen2.5-coder-0.5b-instruct": (
        "qwen2.5-coder:0.5b",
        "qwen2.5-coder:0.5b-instruct-q4_K_M",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    ),
    "qwen2.5-coder-1.5b-instruct": (
        "qwen2.5-coder:1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "hf.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
        "/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ),
    "smollm2-135m-instruct": ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
}
OTHERS = ("qwen2.5-coder:1.5b-base", "qwen2.5:1.5b", "qwen2.5-1.5b-instruct", "qwen2.5-coder:7b", "smollm2", "gpt-5")


def test_shipped_profiles_match_their_models() -> None:
    """Each shipped profile was produced by a complete tuning run. Its patterns match all names of its model and no name
    of another model.
    """
    found = read_profiles("auto", {"XDG_CONFIG_HOME": "/nowhere"})
    assert {profile.name for profile in found} == set(SHIPPED)
    for name, models in SHIPPED.items():
        fits = [most_specific_profile(found, model) for model in models]
        assert {profile.name if profile else "" for profile in fits} == {name}
        text = files("toolsim").joinpath("profiles", f"{name}.toml").read_text("utf-8")
        learned = tomllib.loads(text)["tuned"]
        assert learned["complete"] is True
        assert {choice["outcome"] for choice in learned["choices"]} <= {"preferred", "dropped", "unavailable"}
    assert [most_specific_profile(found, model) for model in OTHERS] == [None] * len(OTHERS)


def test_strict_tags_accepts_only_tagged_calls() -> None:
    """The strict-tags profile accepts only tagged calls, without repairs or retries. Explicit options override it."""
    strict = settings({}, "toolsim_profiles=strict-tags").policy.for_model("any")
    assert (strict.untagged, strict.history, strict.manifest, strict.repair) == ("off", "bracketed", "schemas", "off")
    assert strict.second_opinion == "off"
    assert changed(strict) == {"untagged", "history", "manifest", "repair", "second_opinion", "profile"}
    chosen = settings({}, "toolsim_manifest=hermes", "toolsim_profiles=strict-tags").policy.for_model("any")
    assert (chosen.manifest, chosen.repair) == ("hermes", "off")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("models = [", 1, "not TOML"),
        ('models = ["a"]\n\nx = = 1\n', 3, "not TOML"),
        ("models = []\n", 1, "models: got []"),
        ('[options]\ntoolsim_manifest = "calls"\n', 1, "models: got None"),
        ('models = ["a"]\nmodel = "a"\n', 2, "model: unknown key; did you mean models?"),
        ('models = ["a"]\n[options]\ntoolsim_manifest = "herms"\n', 3, "did you mean hermes?"),
        ('models = ["a"]\n[options]\ntoolsim_retry = 1\n', 3, "toolsim_retry: a profile cannot set this option"),
        ('models = ["a"]\n[options]\ntoolsim_api_key = "k"\n', 3, "toolsim_api_key: a profile cannot set this option"),
        ('models = ["a"]\n[options]\ntoolsim_second_opinion = 1\n', 3, "got 1, expected one of off, undeclared, on"),
        ('models = ["a"]\noptions = 1\n', 2, "options: got 1, expected a table"),
        ('models = ["a"]\n[tuned]\nengine = 1\n', 3, "engine: got 1, expected a string"),
    ],
)
def test_broken_profile_is_reported_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    """The error for a broken profile is a single line that gives the file and the line number."""
    environment = own(tmp_path, bad=text)
    with pytest.raises(OptionsError) as caught:
        settings(environment)
    message = str(caught.value)
    assert message.startswith(f"toolsim_profiles: {tmp_path}/toolsim/profiles/bad.toml:{line}: ")
    assert says in message
    assert "\n" not in message


def test_unreadable_profile_stops_the_start(tmp_path: Path) -> None:
    """A profile file that cannot be read or decoded prevents startup."""
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ValueError, match=r"folder\.toml: Is a directory"):
        read_profiles(str(tmp_path), {})
    (tmp_path / "folder.toml").rmdir()
    (tmp_path / "latin.toml").write_bytes(b'models = ["\xe4"]')
    with pytest.raises(ValueError, match=r"latin\.toml:1: not TOML"):
        read_profiles(str(tmp_path), {})


def test_outdated_profile_causes_a_warning() -> None:
    """A profile causes a warning if it was measured with another version of toolsim or another engine. If the current
    engine is unknown, there is no warning about the engine.
    """
    fields = (("manifest", "hermes"),)
    profile = Profile("p", ("*",), fields, engine="llama.cpp", toolsim=__version__)
    assert (
        profile_warning(profile, "llama.cpp")
        == profile_warning(profile, "unknown")
        == profile_warning(Profile("p", ("*",)), "vllm")
        == ""
    )
    assert profile_warning(profile, "ollama") == "it was measured with llama.cpp, not ollama"
    assert profile_warning(Profile("p", ("*",), engine="llama.cpp"), "ollama") == "", "it changes nothing"
    old = Profile("p", ("*",), fields, engine="llama.cpp", toolsim="0.0.1")
    assert profile_warning(old, "ollama") == "it was measured with toolsim 0.0.1 and llama.cpp, not ollama"


def test_shipped_profiles_are_complete(tmp_path: Path) -> None:
    """Each shipped profile can be parsed and contains its models, engine and version."""
    for profile in read_profiles("auto", {"XDG_CONFIG_HOME": str(tmp_path)}):
        assert profile.engine
        assert profile.toolsim
        assert "*" not in profile.models


FORMS = """models = ["qwen*"]

[[forms]]
opening = "@@CALL"
closing = "@@END"

[[forms]]
opening = "<<call>>"
closing = "<</call>>"
body = "pythn"
"""


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("", ""), 10, "body: got 'pythn', expected one of any, json"),
        (('opening = "<<call>>"\n', ""), 7, "opening: got None, expected one line"),
        (('closing = "@@END"', 'closing = "END"'), 5, "closing: got 'END', expected a marker whose first character"),
        (('body = "pythn"', 'boddy = "python"'), 10, "boddy: a form does not have this key"),
    ],
)
def test_invalid_form_is_reported_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, message: str
) -> None:
    """The error for an invalid call form in a profile gives the file and the line of the invalid entry."""
    environment = own(tmp_path, qwen=FORMS.replace(*change) if change[0] else FORMS)
    with pytest.raises(OptionsError) as caught:
        with_profiles(settings(environment), environment)
    assert f"qwen.toml:{line}: {message}" in str(caught.value)


def test_forms_survive_recording_and_replay(tmp_path: Path) -> None:
    """A recording contains the profile's call forms, and a replay restores them."""
    environment = own(tmp_path, qwen=FORMS.replace("pythn", "python"))
    policy = with_profiles(settings(environment), environment).policy.for_model("qwen3")
    assert [form.closing for form in policy.forms] == ["@@END", "<</call>>"]
    flow = tflow()
    flow.metadata[NOTE] = {"side": "client", "options": policy_as_dict(policy)}
    assert recorded_policy(flow, Policy(), ()).forms == policy.forms
