"""Tests for the architecture rules, one test per rule. Each test lists all violations.

``addon/toolsim`` is a single package in layers. A module imports only lower layers. The upper layers are optional
packages. The core, in the layers below, finds them by name (``plugins.py``) and never imports them.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from toolsim import plugins

ROOT = Path(__file__).parents[1]
ADDON = ROOT / "addon"
PACKAGE = ADDON / "toolsim"
# Modules and packages from bottom to top. Packages in the same layer must not import each other. If a package contains
# both a protocol of the core and an optional implementation, the protocol's modules have their own rows.
CORE_LAYERS = (
    ("installation",),
    ("command_line", "core.failures", "plugins", "version"),
    (
        "core.errors",
        "core.serial_executor",
        "core.time_slice",
        "core.rate",
        "core.report",
        "core.fair_cache",
        "core.fair_lock",
        "core.recent",
        "core.tasks",
    ),
    ("core.custom_forms", "core.events", "core.outputs", "core.turns"),
    ("core.policy",),
    ("core.plan",),
    ("core.conversation", "schema"),
    ("wire",),
    ("request", "response"),
    ("mcp.approvals", "mcp.catalog", "mcp.outcome", "mcp.runtime", "mcp.servers"),
    ("parsing", "stores.url", "stores.record"),
    ("rounds",),
    ("proxy",),
)
# Each optional package can be removed, together with the higher packages that use it.
OPTIONAL_LAYERS = (
    ("background", "mcp", "pages", "sockets", "stores"),
    ("backends",),
    ("recordings",),
    ("cli", "otel"),
    ("eval",),
    ("__main__",),
)
LAYER = {unit: layer for layer, units in enumerate((*CORE_LAYERS, *OPTIONAL_LAYERS)) for unit in units}
# Packages whose modules within the core may import each other.
ONE_CORE = {"mcp", "stores"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# Modules of the core that do input or output, or depend on time.
EDGES = (
    "command_line",
    "core.failures",
    "core.fair_lock",
    "core.serial_executor",
    "core.time_slice",
    "core.rate",
    "core.tasks",
    "core.turns",
    "installation",
    "mcp",
    "proxy",
    "rounds",
    "stores",
)
# Modules that do input or output, or depend on the time or the machine. Pure modules must not import them.
IMPURE = {"asyncio", "logging", "os", "socket", "subprocess", "threading", "tornado", "mitmproxy", "pathlib", "sys"}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def module_of(path: Path) -> str:
    """Return a file's dotted module name without the prefix ``toolsim.``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def unit(module: str) -> str:
    """Return a module's key in ``LAYER``: its own key or, without one, its package's key."""
    parts = module.split(".")
    return next((".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in LAYER), parts[0])


def package(unit: str) -> str:
    return unit.partition(".")[0]


def is_core(path: Path) -> bool:
    return LAYER[unit(module_of(path))] < len(CORE_LAYERS)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names of all modules that a file imports, including imports within functions."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: a relative import"
            found.add(node.module or "")
            if node.module and node.module.startswith("toolsim"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def top_levels(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {module.split(".")[0] for module in imports(path)}


def own_imports(path: Path) -> set[str]:
    """Return the toolsim modules that a file imports, without the prefix ``toolsim.``. Packages are not included."""
    found = {module.removeprefix("toolsim.") for module in imports(path) if module.startswith("toolsim.")}
    return {module for module in found if (PACKAGE / f"{module.replace('.', '/')}.py").is_file()}


def test_every_module_has_a_layer() -> None:
    """Each module or package has a layer in this file."""
    assert {unit(module_of(path)) for path in MODULES} == set(LAYER)


def test_imports_run_one_way() -> None:
    """A module imports only its own package and lower layers, never a sibling package or a higher layer.

    This also keeps optional packages out of the core, because their layers are higher.
    """
    wrong = []
    for path in MODULES:
        here = unit(module_of(path))
        for module in own_imports(path):
            there = unit(module)
            may_import = there == here or (LAYER[there] == LAYER[here] and package(there) == package(here) in ONE_CORE)
            if not may_import and LAYER[there] >= LAYER[here]:
                wrong.append(f"{name(path)} imports {module}")
    assert wrong == []


def test_package_imports_no_modules() -> None:
    """Importing the package imports no modules, because mitmproxy and the pytest plugin import it at each start."""
    at_once = [node for node in tree(PACKAGE / "__init__.py").body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {getattr(node, "module", "?") for node in at_once} <= {"__future__", "typing"}


def test_plugins_are_optional_modules() -> None:
    """Each module that the core finds by name exists and belongs to an optional package."""
    kinds = [*plugins.BUILTIN.values(), *plugins.STORES.values()]
    fixed = {plugins.LOOPBACK_SERVER, plugins.SOCKETS, plugins.BACKGROUND, plugins.MCP}
    named = fixed | {kind.module for kind in kinds}
    assert [module for module in named if importlib.util.find_spec(module) is None] == []
    assert [module for module in named if LAYER[unit(module.removeprefix("toolsim."))] < len(CORE_LAYERS)] == []
    # mypy can compare these modules with the core's protocols only if a checked file imports them.
    assert named - imports(ROOT / "tests" / "support" / "plugins.py") == set()


def test_pure_modules_do_no_io() -> None:
    """Pure modules import no modules for input or output. Imports of time and randomness are not checked."""
    pure = [path for path in MODULES if is_core(path) and not unit(module_of(path)).startswith(EDGES)]
    impure = {name(path): top_levels(path) & IMPURE for path in pure}
    assert {path: modules for path, modules in impure.items() if modules} == {}


def test_only_the_top_layer_imports_mitmproxy() -> None:
    """In the core, only ``proxy`` imports mitmproxy, so all other modules work without it."""
    below = [path for path in MODULES if is_core(path) and unit(module_of(path)) != "proxy"]
    assert [name(path) for path in below if "mitmproxy" in top_levels(path)] == []


def test_no_import_cycle() -> None:
    """No modules import each other in a cycle, because a cycle would mean that their boundaries are wrong."""
    files = [*MODULES, *PACKAGE.rglob("__init__.py")]
    modules = {f"toolsim.{module_of(path)}": imports(path) for path in files}
    try:
        TopologicalSorter({module: found & modules.keys() - {module} for module, found in modules.items()}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


# ─ claims of the packages' docstrings ─

# Modules that name APIs but do not behave differently for each API: they define the names and the choices of an option.
API_WORDS = ("core/policy.py", "proxy/options/table.py")


def decisions(path: Path) -> Iterator[int]:
    """Yield the lines of code that depend on an API's name: comparisons, dictionary keys, match cases and results."""
    for node in ast.walk(tree(path)):
        named: list[ast.expr | None] = []
        match node:
            case ast.Compare():
                named = [node.left, *node.comparators]
            case ast.Dict():
                named = node.keys
            case ast.MatchValue() | ast.Return():
                named = [node.value]
            case ast.IfExp():
                named = [node.body, node.orelse]
        for part in [part for whole in named for part in (whole.elts if isinstance(whole, ast.Tuple) else [whole])]:
            # "messages" is also a field of requests, so it does not count as a key or as a result.
            is_key = isinstance(node, ast.Dict | ast.IfExp)
            names = ("chat", "responses") if is_key else ("chat", "responses", "messages")
            if isinstance(part, ast.Constant) and part.value in names:
                yield part.lineno


def test_only_wire_decides_by_api() -> None:
    """Only ``wire`` contains decisions that depend on the API. Other modules use the API's object, so that adding an
    API means adding an object.

    ``eval`` is exempt, because it is a client and uses the APIs through the openai package.
    """
    others = [path for path in MODULES if unit(module_of(path)) not in ("eval", "wire")]
    checked = [path for path in others if name(path) not in API_WORDS]
    assert [f"{name(path)}:{line}" for path in checked for line in decisions(path)] == []


# -- reliance on internals of libraries --

# The only folder that uses undocumented parts of mitmproxy. Its README lists them.
MITMPROXY = PACKAGE / "proxy" / "mitmproxy12"
# The only other files that use undocumented parts of a library. Their tests check that these parts still exist.
LEANS_ON_INTERNALS = {
    "proxy/paced_client.py": "tornado: the connection of its client, and that it awaits what receiving returns",
    "schema/validator.py": "jsonschema: the resolver of a validator",
}

# The attributes of flows and messages that mitmproxy documents and that addons are allowed to set.
DOCUMENTED = {
    *("client_conn", "comment", "error", "id", "intercepted", "is_replay", "marked", "metadata", "request", "response"),
    *("authority", "content", "fields", "headers", "host", "http_version", "method", "path", "port", "raw_content"),
    *("reason", "scheme", "server_conn", "status_code", "stream", "text", "timestamp_created", "timestamp_end"),
    *("host_header", "sni", "timestamp_start", "trailers"),
}
# Files that set attributes of other libraries' objects in the way that these libraries intend.
SET_BY_ATTRIBUTE = {
    "backends/local.py": "xllamacpp: the parameters of a server",
    "recordings/result.py": "ElementTree: the text of an element",
}


def internals(module: ast.Module) -> set[str]:
    """Return the private names, such as ``_name``, of other objects that a file uses."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    return {word for word in found if word.startswith("_") and not word.startswith("__")}


def test_private_names_are_used_in_one_folder() -> None:
    """Only the ``proxy/mitmproxy12`` folder and the modules in ``LEANS_ON_INTERNALS`` use private names of other
    objects.
    """
    leaning = {name(path) for path in MODULES if internals(tree(path)) and not path.is_relative_to(MITMPROXY)}
    assert leaning == set(LEANS_ON_INTERNALS)


@cache
def own_attributes() -> frozenset[str]:
    """Return the names of all attributes that toolsim's classes have."""
    found: set[str] = set()
    for path in ADDON.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found |= {
                    part.target.id
                    for part in node.body
                    if isinstance(part, ast.AnnAssign | ast.AugAssign)
                    if isinstance(part.target, ast.Name)
                }
                found |= {
                    to.id
                    for part in node.body
                    if isinstance(part, ast.Assign)
                    for to in part.targets
                    if isinstance(to, ast.Name)
                }
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                found.add(node.attr)
    return frozenset(found)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def patches(module: ast.Module) -> Iterator[str]:
    """Yield the places where a file sets or deletes an attribute of an object that might belong to another library.

    Attributes in ``DOCUMENTED`` and attributes of toolsim's own classes may be set. If an argument's class belongs to
    another library, only attributes in ``DOCUMENTED`` may be set. On imported objects, no attributes may be set.
    """
    imported: set[str] = set()
    foreign: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            where = getattr(node, "module", None) or node.names[0].name
            if where.partition(".")[0] not in {"toolsim", *sys.stdlib_module_names}:
                foreign |= {alias.asname or alias.name for alias in node.names}
    of_others = {
        argument.arg
        for argument in ast.walk(module)
        if isinstance(argument, ast.arg) and argument.annotation is not None
        if {part.id for part in ast.walk(argument.annotation) if isinstance(part, ast.Name)} & foreign
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and not _is_self(node.value):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            is_imported = isinstance(root, ast.Name) and root.id in imported
            is_of_others = isinstance(node.value, ast.Name) and node.value.id in of_others
            if is_imported or node.attr not in (DOCUMENTED if is_of_others else DOCUMENTED | own_attributes()):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id in ("setattr", "delattr", "vars") and not _is_self(node.args[0]):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__setattr__") and not _is_self(node.value):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_only_one_folder_patches_libraries() -> None:
    """Outside of ``eval``, only the ``proxy/mitmproxy12`` folder sets attributes of modules, or undocumented attributes
    of other libraries' objects.
    """
    elsewhere = [path for path in MODULES if not path.is_relative_to(MITMPROXY) and unit(module_of(path)) != "eval"]
    checked = {name(path): path for path in elsewhere if name(path) not in SET_BY_ATTRIBUTE}
    assert [f"{where}:{place}" for where, path in checked.items() for place in patches(tree(path))] == []


@pytest.mark.parametrize(
    "line",
    [
        "from mitmproxy.proxy.layers import http\nhttp.HttpStream = Own",
        "from mitmproxy.proxy.layers import http\ndel http.HttpStream",
        "from toolsim.proxy import streamed\nstreamed.SLICE_SECONDS = 1",
        "from mitmproxy.http import Request\nRequest.pretty_url = None",
        "manager.trigger_event = own",
        "loader.master.addons.handle_lifecycle = own",
        "flow.client_conn.via = None",
        "from mitmproxy.connection import Server\ndef forget(server: Server | None):\n  server.report = 1",
        "top.handle_event = own",
        "setattr(manager, 'trigger_event', own)",
        "delattr(manager, 'trigger_event')",
        "vars(manager).pop('trigger_event', None)",
        "manager.__dict__['trigger_event'] = own",
        "object.__setattr__(manager, 'trigger_event', own)",
        "for stream.request_body_buf in layers: pass",
        "with opened() as stream.request_body_buf: pass",
    ],
)
def test_planted_patch_is_found(line: str) -> None:
    """The check for patches detects each way of setting an attribute."""
    assert list(patches(ast.parse(line)))


# Modules that the proxy must not import at startup, because only an option, a command or a later request needs them.
ON_DEMAND = (
    *("jsonschema", "mcp", "opentelemetry", "redis", "referencing", "regex", "sqlite3", "tornado", "xml.etree"),
    *("toolsim.eval", "toolsim.otel.tracing"),
    *("toolsim.backends", "toolsim.background", "toolsim.cli", "toolsim.rounds.local_server", "toolsim.rounds.server"),
    *("toolsim.mcp.connection", "toolsim.mcp.server_config", "toolsim.mcp.engine", "toolsim.mcp.pool"),
    *("toolsim.pages.show_answer", "toolsim.pages.show_request", "toolsim.schema.build"),
    *("toolsim.recordings.redact", "toolsim.recordings.replay", "toolsim.sockets"),
    *("toolsim.stores.redis_server", "toolsim.stores.sqlite"),
)


def test_start_imports_no_optional_feature() -> None:
    """Loading the addon imports no module that belongs to an optional feature, so mitmdump starts fast."""
    code = "import runpy, sys; print(len(runpy.run_path('toolsim.py')['addons']), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ADDON, capture_output=True, text=True, check=True)
    count, *modules = done.stdout.split()
    assert int(count) > 3
    assert [name for name in modules if name.startswith(ON_DEMAND)] == []


def test_no_module_shadows_the_stdlib() -> None:
    """No module has the same name as a standard library module, which it would shadow within its folder."""
    folders = (ADDON, ROOT / "tests")
    paths = [path for folder in folders for path in folder.rglob("*.py") if "node_modules" not in path.parts]
    names = {path.stem for path in paths} | {path.parent.name for path in paths}
    assert not names & sys.stdlib_module_names


def test_top_level_of_the_repository() -> None:
    """The repository's top level contains only three folders, three files, and files whose names begin with a dot."""
    seen = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    built = {"build", "dist", "node_modules"}
    assert seen - built == {"addon", "tests", "flows", "pyproject.toml", "Makefile", "README.md"}
