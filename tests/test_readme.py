"""Tests that the README and the pages match the code: their options, commands, snippets and links."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.mitmdump import ROOT, Mitmdump
from test_architecture import CORE_LAYERS, OPTIONAL_LAYERS
from toolsim.backends.scripted.script import DIRECTIONS
from toolsim.cli.arguments import check_settings
from toolsim.cli.config import with_config_file
from toolsim.cli.main import RENAMED as RENAMED_COMMANDS
from toolsim.cli.main import parser
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.eval import flags, suites
from toolsim.eval.learn.command import parser as learn_parser
from toolsim.eval.learn.decisions import decisions
from toolsim.proxy.legacy import RENAMED, RENAMED_METRICS, VARIABLES
from toolsim.proxy.options.api_keys import read_users
from toolsim.proxy.options.option import PREFIX, Option
from toolsim.proxy.options.table import OPTIONS
from toolsim.recordings import export, pytest_plugin, replay
from toolsim.request.rewrite import rewrite_request
from toolsim.response.rewrite import ResponseRewriter

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "addon" / "docs"
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in DOCS.glob("*.md")))
"""The README, and all pages in ``docs``."""
TEXT = "\n".join((ROOT / page).read_text() for page in PAGES)
MAKEFILE = (ROOT / "Makefile").read_text()
NODE = ROOT / "tests" / "clients" / "node"
SVG = "{http://www.w3.org/2000/svg}"
# Maximum duration of a snippet, in seconds. On a busy machine, it takes more than a minute to import some clients.
PATIENCE = 240


def section(name: str) -> str:
    """Return the text between the two markers with this name, from the page that contains them."""
    return TEXT.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


GROUPS: dict[str, tuple[str, ...]] = {
    "Backend": ("backend", "upstream", "models", "engine", "upstream_key", "codex_command", "model"),
    "Model input": (
        "profiles",
        "manifest",
        "manifest_role",
        "catalog_budget",
        "history",
        "reasoning",
        "sentinel",
        "mode",
        "constrain",
        "tool_allowlist",
        "forward_hosted_tools",
    ),
    "Other request fields": ("request_overrides", "request_defaults", "transforms"),
    "Recognition of calls": ("untagged", "repair", "strict_policy"),
    "Additional rounds": (
        "retry",
        "unknown_tool",
        "second_opinion",
        "fix_empty_final",
        "tool_use_mode",
        "loop_limit",
        "max_rounds",
    ),
    "Answers to the client": (
        "stream_arguments",
        "stop_after_tools",
        "tool_block_max",
        "tool_block_dedup",
        "output_mode",
        "tool_block_delimiter",
    ),
    "Stored answers": ("store",),
    "MCP servers": ("mcp_config", "mcp_hosts", "mcp_approval"),
    "Access": ("api_key", "cors_origins"),
    "Logs, metrics, recordings": ("log", "metrics_labels", "sse_telemetry", "capture"),
    "Limits": ("max_body_bytes", "max_tool_bytes", "connect_timeout", "idle_timeout", "drain_timeout"),
}
"""The groups on the options page, with the names of their options."""


def default_of(option: Option) -> str:
    default = ", ".join(option.default) if isinstance(option.default, tuple) else json.dumps(option.default).strip('"')
    return f"`{default}`" if default else "empty"


def by_value(option: Option) -> str:
    """Return an option's help with its values as a list. Each value is described after ``VALUE:`` or ``VALUE,
    VALUE:``."""
    names = "|".join(re.escape(choice or "Empty") for choice in option.choices)
    lead, *rest = re.split(rf"(?<=\. )((?:{names})(?:, (?:{names}))*): ", option.help) if names else [option.help]
    values = [
        f"- {', '.join(f'`{name}`' if name != 'Empty' else name for name in about.split(', '))}: {text.strip()}"
        for about, text in zip(rest[::2], rest[1::2], strict=True)
    ]
    # Without the escape, Markdown would treat call markers as HTML tags.
    return "\n".join((lead.strip(), *([""] if values else []), *values)).replace("<", "\\<")


def options_page() -> str:
    """Return the options page: a table of contents by group, and then each option with its complete help."""
    parts = ["# Options\n", INTRODUCTION.format(variables="`, `".join(VARIABLES))]
    by_name = {option.name: option for option in OPTIONS}
    links = {name: f"[`{option.full_name}`](#{option.full_name})" for name, option in by_name.items()}
    contents = [
        f"| [{title}](#{anchor(title)}) | {', '.join(map(links.get, names))} |" for title, names in GROUPS.items()
    ]
    parts.append("\n".join(("| Group | Options |", "|---|---|", *contents, "")))
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for option in (by_name[name] for name in names):
            others = ", ".join(f"`{choice}`" for choice in option.choices if choice != option.default)
            values = f"Default: {default_of(option)}{f'; other values: {others}' if others else ''}."
            parts.append(f"### {option.full_name}\n\n{values}\n\n{by_value(option)}\n")
    return "\n".join(parts)


OPTIONS_PAGE = DOCS / "options.md"
INTRODUCTION = """\
| to set an option | do this |
|---|---|
| for one run | `--set NAME=VALUE`, on `toolsim` and on mitmproxy's programs |
| for every run | a [settings file](backends.md#settings-file), or mitmproxy's `config.yaml` |
| while toolsim is running | mitmweb's *Options* tab, or the command `set` in mitmproxy |

`toolsim options` prints all options with their current values, and `toolsim options store` prints only options whose
name or help contains the word "store". An invalid name or value, or a removed option, aborts startup with a one-line
message. Renamed options keep working for one release, with a warning.

The following environment variables of toolsim's predecessor change the defaults of some options: `{variables}`.
"""


def test_settings_file_is_valid(tmp_path: Path) -> None:
    """The settings file on the documentation page is equivalent to a valid command line."""
    file = tmp_path / "toolsim.toml"
    file.write_text(re.findall(r"^```toml\n(.*?)^```", (DOCS / "backends.md").read_text(), re.MULTILINE | re.DOTALL)[0])
    words = ["serve", "--config", str(file)]
    args = parser().parse_args(with_config_file(words, parser().parse_args(words), file))
    check_settings(args.set, host=args.host)
    assert (args.backend, args.port) == ("http://127.0.0.1:11434/v1", 9000)


def test_key_file_is_valid(tmp_path: Path) -> None:
    """The example key file on the documentation page is valid. One of its users has a key, and the other user has a
    digest.
    """
    (example,) = re.findall(
        r"^```text\n(# NAME KEY.*?)^```", (DOCS / "security.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "keys.txt").write_text(example)
    alice, bob = read_users(tmp_path / "keys.txt").values()
    assert (alice.name, alice.concurrent, alice.per_minute) == ("alice", 4, 60)
    assert (bob.name, bob.concurrent, bob.per_minute) == ("bob", 0, 0)


def test_every_option_is_in_one_group() -> None:
    """Each option is in exactly one group of the options page."""
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(option.name for option in OPTIONS)


def test_every_option_is_documented() -> None:
    """The options page is up to date (to update it, run ``python test_readme.py``), and the README lists six
    options.
    """
    assert OPTIONS_PAGE.read_text() == options_page()
    known = {option.full_name for option in OPTIONS} | {PREFIX + name for name in RENAMED} | {"toolsim_replay"}
    assert hasattr(pytest_plugin, "toolsim_replay")
    metrics = {
        PREFIX + name
        for name in (
            "profiles_total",
            "internal_errors_total",
            "refused_requests_total",
            "user_exchanges_total",
            "user_tokens_total",
            *RENAMED_METRICS,
            *RENAMED_METRICS.values(),
        )
    }
    assert set(re.findall(r"\btoolsim_[a-z_]+[a-z]\b", TEXT)) <= known | metrics
    assert len(re.findall(r"^\| `toolsim_\w+` \|", README, re.MULTILINE)) == 6


def test_readme_fits_on_a_page() -> None:
    """The README has at most 250 lines, and links to every page."""
    assert len(README.splitlines()) <= 250
    assert {page for page in PAGES if page != "README.md"} <= set(re.findall(r"\]\(([^)#]+)", README))


def test_documented_settings_are_valid() -> None:
    """Each setting on the pages names an existing option and, if the option has choices, one of its choices."""
    by_name = {option.full_name: option for option in OPTIONS}
    settings = re.findall(r"--set (toolsim_\w+)=(\S+?)`?(?=[\s,.:])", TEXT)
    assert settings
    for name, value in settings:
        assert not by_name[name].choices or value in by_name[name].choices, f"{name}={value}"


def test_every_stage_direction_is_documented() -> None:
    """The page on backends lists exactly the stage directions that the scripted model supports."""
    rows = re.findall(r"^\| `\[(\w+)\]` \| (.*) \|$", section("directions"), re.MULTILINE)
    assert dict(rows) == DIRECTIONS


def test_every_make_target_is_documented() -> None:
    """Each target that ``make help`` lists is mentioned on a page, and no page mentions any other target."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)) - {"help", "setup"}
    mentioned = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {first or second for first, second in mentioned} - {"setup", "help"} == targets


def test_renamed_make_targets_keep_working() -> None:
    """Each former name of a make target runs the renamed target, and prints its current name."""
    [renamed] = re.findall(r"^RENAMED := (.*)$", MAKEFILE, re.MULTILINE)
    for name in renamed.split():
        done = subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True, check=True)
        [new] = re.findall(rf'echo "make {name} is now called make ([a-z-]+)"', done.stdout)
        assert re.search(rf"^{new}:.*## ", MAKEFILE, re.MULTILINE)


def test_evaluation_flags_exist() -> None:
    """Each evaluation flag on the pages is accepted by the evaluation's parser, and each evaluation suite on the pages
    exists.
    """
    text = section("eval")
    known = set(re.findall(r"--[a-z][a-z-]*", flags.parser({}).format_help())) | {"--a", "--b"}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--no-deps"}
    assert "--method" in mentioned
    assert mentioned <= known
    for suite in ("scenarios", "questions", "unseen", "which_output"):
        assert f"`{suite}`" in text or f"--suite {suite}" in text
        assert suites.load(suite)


def test_table_of_tune_decisions_is_current() -> None:
    """The page about profiles lists the decisions of ``toolsim tune``, under the names that ``--only`` accepts."""
    [table] = re.findall(r"^\| decision \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE) == [one.what for one in decisions("unknown")]


@pytest.mark.parametrize("page", PAGES)
def test_files_and_anchors_exist(page: str) -> None:
    """Each file and anchor that a page links to exists."""
    here = ROOT / page
    for link in re.findall(r"\]\(([^)]+)\)", here.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        there = (here.parent / path) if path else here
        assert there.exists(), link
        assert not anchor or anchor in anchors_of(there), link


@pytest.mark.parametrize("page", PAGES)
def test_details_are_closed(page: str) -> None:
    """Each <details> element is closed before the next heading; otherwise, it would hide the rest of the page."""
    for part in re.split(r"^#+ ", (ROOT / page).read_text(), flags=re.MULTILINE):
        assert part.count("<details>") == part.count("</details>"), part.partition("\n")[0]


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    return set(map(anchor, re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)))


PACKAGE = ROOT / "addon" / "toolsim"
ARCHITECTURE = (PACKAGE / "README.md").read_text()


def test_names_on_the_architecture_page_exist() -> None:
    """Each file, function and class that the architecture page names exists."""
    for name in re.findall(r"`([\w/.]+(?:\.py|\.json|/))`", ARCHITECTURE):
        assert (PACKAGE / name).exists() or (ROOT / name).exists() or any(PACKAGE.rglob(name)), name
    source = "\n".join(path.read_text() for path in PACKAGE.parent.rglob("*.py"))
    for name in re.findall(r"`(_?[a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z]\w+|[A-Z]{4,})`", ARCHITECTURE):
        assert re.search(rf"\b{name}\b", source) or name in ("API_NAMES", "GROUPS"), name


def test_architecture_page_lists_the_layers() -> None:
    """The table on the architecture page lists the same layers as the architecture test."""
    table = ARCHITECTURE.split("<!-- layers -->")[1].split("<!-- /layers -->")[0]
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", table, re.MULTILINE)
    layers = tuple(tuple(re.findall(r"`([\w.]+)`", row)) for row in rows)
    assert layers == (*CORE_LAYERS, *OPTIONAL_LAYERS)


def test_versions_of_clients_are_tested() -> None:
    """The versions in the table of clients are the versions that the tests install."""
    python = re.findall(r'"([a-z-]+)(?:\[[a-z]+\])?==([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    node: dict[str, str] = {}
    for folder in (NODE, NODE.parent / "agents"):
        node |= json.loads((folder / "package.json").read_text())["dependencies"]
    pinned = {f"{name}=={version}" for name, version in python} | {f"{name}@{node[name]}" for name in node}
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", section("clients"), re.MULTILINE)
    assert len(rows) == 15
    assert set(rows) <= pinned


# -- commands


def commands() -> list[str]:
    """Return all command lines on the pages that begin with toolsim and a subcommand."""
    blocks_of_shell = re.findall(r"^ *```sh\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    shell = [line.strip() for block in blocks_of_shell for line in block.splitlines()]
    inline = re.findall(r"`(toolsim [a-z][^`]*)`", TEXT)
    return sorted({line for line in (*shell, *inline) if line.startswith("toolsim ")})


@pytest.mark.parametrize("line", commands())
def test_every_command_line_is_accepted(line: str, tmp_path: Path) -> None:
    """The parser accepts each command line on the pages, and all its options and values are valid."""
    # Placeholders for the reader's own values.
    (tmp_path / "model.gguf").touch()
    (tmp_path / "models.toml").write_text('[[models]]\nnames = "m"\nurl = "http://127.0.0.1:9"\n')
    line = line.replace("=models.toml", f"={tmp_path / 'models.toml'}")
    meant = {"URL": "http://127.0.0.1:9", "model.gguf": str(tmp_path / "model.gguf"), "PROGRAM": "codex"}
    words = [meant.get(word, word) for word in shlex.split(line)[1:]]
    # The changelog for an earlier version uses that version's names.
    words[0] = RENAMED_COMMANDS.get(words[0], words[0])
    if words[0] == "claude" and "--run" in words:
        words = ["launch", "claude", *(word for word in words[1:] if word != "--run")]
    if words[0] == "eval":
        rest = words[1:]
        assert rest[:1] in (["compare"], ["join"], ["models"]) or flags.parser({}).parse_args(rest)
    elif words[0] == "tune":
        assert not words[1:] or learn_parser().parse_args(words[1:]).url
    elif words[0] == "replay":
        assert replay.parser().parse_args(words[1:]).paths == [Path("DIR")]
    elif words[0] == "export":
        assert export.parser().parse_args(words[1:]).paths == [Path("DIR")]
    elif words[0] == "doctor":
        assert parser().parse_args(words).url
    elif words[0] in ("addon-path", "options"):
        assert parser().parse_args(words).command == words[0]
    else:
        # Arguments after -- are passed on to the launched program.
        args = parser().parse_args(words[: words.index("--")] if "--" in words else words)
        check_settings(args.set, host=args.host)


def test_each_common_backend_has_one_command() -> None:
    """The documentation's table of backends has one command for each common backend. Each command listens only on this
    machine.
    """
    rows = re.findall(r"^\| ([^|]+) \| `(toolsim [^`]+)` \|", section("recipes"), re.MULTILINE)
    assert [name for name, _ in rows] == [
        "your Codex login",
        "Ollama",
        "llama-server",
        "vLLM",
        "LM Studio",
        "a gateway",
        "a model file, no server",
        "none, to try things",
    ]
    assert all("--host" not in command for _, command in rows)


def test_mitmproxy_commands_listen_on_localhost() -> None:
    """Each mitmproxy command on the pages listens only on this machine, or only reads a file."""
    lines = re.findall(r"^ *(mitm(?:dump|web|proxy) -.*)$", TEXT, re.MULTILINE)
    assert lines
    assert [line for line in lines if "--listen-host 127.0.0.1" not in line and " -nr " not in line] == []


def test_first_image_shows_a_real_rewrite() -> None:
    """On the left side, the README's first image shows a model's answer; on the right side, it shows toolsim's actual
    output for this answer.
    """
    picture = ElementTree.parse(ROOT / "tests/cli/screenshots/before-after.svg")
    left, right = ("\n".join("".join(text.itertext()) for text in group) for group in picture.iter(f"{SVG}g"))
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather"}}],
    }
    report = Report()
    rewritten = rewrite_request(
        "chat", "/v1/chat/completions", json.dumps(asked).encode(), Policy(), output_mode=None, report=report
    )
    assert rewritten is not None
    rewriter = ResponseRewriter(rewritten.plan, report, content_type="application/json")
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": left}, "finish_reason": "stop"}]}
    body = json.loads(b"".join([*rewriter.feed(json.dumps(answer).encode()), *rewriter.feed(b"")]))
    [choice] = body["choices"]
    shown = json.loads("{" + right + "}")
    shown_to_client = {"content": choice["message"]["content"], "tool_calls": choice["message"]["tool_calls"]}
    assert shown_to_client | {"finish_reason": choice["finish_reason"]} == shown


# -- snippets


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with Mitmdump(toolsim_backend="scripted", toolsim_store="memory") as proxy:
        yield proxy.url


def with_base_url(snippet: str, url: str) -> str:
    assert "http://127.0.0.1:8080" in snippet
    return snippet.replace("http://127.0.0.1:8080", url)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("snippet", [snippet for snippet in blocks("python") if "toolsim" not in snippet])
def test_python_snippets_run(snippet: str, scripted: str) -> None:
    """Each Python snippet for a client runs, with only the URL changed, and prints the model's answer.

    ``unit/test_parsing.py`` and ``clients/test_fastapi.py`` run the snippets for the parsing library.
    """
    command = [sys.executable, "-W", "ignore", "-c", with_base_url(snippet, scripted)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "scripted" in run.stdout, run.stderr


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("snippet", blocks("js"))
def test_javascript_snippets_run(snippet: str, scripted: str, tmp_path: Path) -> None:
    """Each JavaScript snippet for a client runs, with only the URL changed, and prints the model's answer."""
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").is_dir():
        pytest.skip("needs node and its clients (make test-clients)")
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    (tmp_path / "snippet.mjs").write_text(with_base_url(snippet, scripted))
    command = [node, "snippet.mjs"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "scripted" in run.stdout, run.stderr


if __name__ == "__main__":
    OPTIONS_PAGE.write_text(options_page())
