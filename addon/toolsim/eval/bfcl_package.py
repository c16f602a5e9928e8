"""Uses the ``bfcl-eval`` package as a library: its data, prompt, parser and checkers.

The package is meant to be run as a program. Importing it requires five workarounds:

1. Its dependencies include torch, pandas, a numpy without wheels for Python 3.13, and the SDKs of a dozen vendors, but
   the code that is used here needs only three small packages. ``INSTALL`` therefore omits all other dependencies.
2. ``constants.model_config`` imports every vendor's SDK only to determine whether a model writes ``_`` for the dots in
   a function's name. A stub returns True, which is correct for all function-calling models.
3. Its parsers for Java and JavaScript need an old tree_sitter without wheels for recent versions of Python. Only the
   Python categories are used here, so stubs replace these parsers.
4. On import, it creates folders next to itself, in site-packages. An environment variable moves them elsewhere.
5. Its parser uses ``ast.NameConstant``, which Python 3.14 removed. This module restores it if necessary.

Two of the package's functions evaluate a model's text as Python: the parser, and the executor for multi-turn cases.
They receive only literals and simple arithmetic (see ``read_prompted`` and ``source``).
"""

from __future__ import annotations

import ast
import atexit
import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

from toolsim.command_line import UsageError
from toolsim.installation import install_command

INSTALL = install_command(("bfcl-eval==2026.3.23", "filelock", "mpmath", "tenacity"), dependencies=False)

Entry = dict[str, Any]
"""A case in BFCL's format: ``id``, ``question`` (turns of messages), ``function`` (descriptions), …"""
Decoded = dict[str, dict[str, Any]]
"""A call in the format of BFCL's checkers: a dictionary that maps the function's name to the arguments."""

_MODEL = "toolsim"
_FOLDER_VARIABLE = "BFCL_PROJECT_ROOT"
_STAND_INS: Mapping[str, Mapping[str, object]] = {
    "bfcl_eval.constants.model_config": {
        "MODEL_CONFIG_MAPPING": defaultdict(lambda: SimpleNamespace(underscore_to_dot=True))
    },
    "bfcl_eval.model_handler.parser.java_parser": {"parse_java_function_call": None},
    "bfcl_eval.model_handler.parser.js_parser": {"parse_javascript_function_call": None},
}
# Maximum absolute value of numbers in arithmetic expressions, which models sometimes write instead of results.
_MAX_OPERAND = 10**6
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
# Large values of these arguments become NaN, because they could exhaust the simulated calculator's time or memory.
_BOUNDED = ("base", "exponent", "precision")
_MAX_BOUNDED = 1000


class Unreadable(ValueError):
    """Raised if the model's text cannot be parsed as a list of calls."""


@cache
def _module(name: str) -> Any:
    """Import a module of BFCL, with the workarounds listed above. Raises UsageError if BFCL is not installed."""
    try:
        importlib.import_module("bfcl_eval")
        for stand_in, names in _STAND_INS.items():
            if stand_in not in sys.modules:
                sys.modules[stand_in] = module = ModuleType(stand_in)
                vars(module).update(names)
        with _Folder():
            module = importlib.import_module(f"bfcl_eval.{name}")
    except ImportError as missing:
        raise UsageError(f"BFCL is not installed ({missing}); install it with: {INSTALL}") from missing
    if sys.version_info >= (3, 14):
        vars(ast).setdefault("NameConstant", ast.Constant)
    return module


class _Folder:
    """Makes BFCL create its folders in a temporary folder instead of site-packages."""

    def __enter__(self) -> None:
        self._before = os.environ.get(_FOLDER_VARIABLE)
        if self._before is None:
            os.environ[_FOLDER_VARIABLE] = _temporary_folder()

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del os.environ[_FOLDER_VARIABLE]


@cache
def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="toolsim-bfcl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def load_entries(category: str) -> list[Entry]:
    """Return the cases in a category, in file order. Raises UsageError if BFCL is not installed."""
    entries: list[Entry] = _module("utils").load_dataset_entry(category)
    return entries


def load_answers(category: str) -> dict[str, Any]:
    """Return the correct answers for a category, by case ID. Raises UsageError if BFCL is not installed."""
    return {entry["id"]: entry["ground_truth"] for entry in _module("utils").load_ground_truth_entry(category)}


def tool_declarations(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert BFCL's function descriptions to tools, with JSON schema types and without dots in names."""
    handler = _module("model_handler.utils")
    declared = handler.convert_to_tool(
        functions,
        _module("constants.type_mappings").GORILLA_TO_OPENAPI,
        _module("constants.enums").ModelStyle.OPENAI_COMPLETIONS,
    )
    return [tool["function"] for tool in declared]


def prompted(messages: Sequence[Mapping[str, Any]], entry: Entry) -> list[dict[str, Any]]:
    """Return the messages with BFCL's default system prompt, which describes the functions of the entry."""
    copies = [dict(message) for message in messages]
    prompt = _module("model_handler.utils").system_prompt_pre_processing_chat_model
    placed: list[dict[str, Any]] = prompt(copies, entry["function"], entry["id"])
    return placed


def read_prompted(text: str) -> list[Decoded]:
    """Return the calls in a model's text, as parsed by BFCL. Raises Unreadable if BFCL cannot parse the text."""
    # BFCL's parser evaluates the text, so all code is rejected first, except for arithmetic with small numbers.
    stripped = text.strip("`\n ")
    stripped = ("" if stripped.startswith("[") else "[") + stripped + ("" if stripped.endswith("]") else "]")
    try:
        # Python warns about backslashes or ``1is`` in the model's text. Such warnings are irrelevant.
        with warnings.catch_warnings(action="ignore"):
            for node in ast.walk(ast.parse(stripped.strip().strip("'"), mode="eval")):
                _refuse_unsafe(node)
            decoded = _module("model_handler.utils").default_decode_ast_prompting(text)
        if not _module("utils").is_function_calling_format_output(decoded):
            raise Unreadable("not a list of calls")
    except Unreadable:
        raise
    except Exception as error:  # Depending on its input, BFCL's parser can raise any exception.
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from error
    return [{name.replace(".", "_"): arguments} for call in decoded for name, arguments in call.items()]


def _refuse_unsafe(node: ast.AST) -> None:
    if isinstance(node, ast.Lambda):
        raise Unreadable("an argument is a lambda, which cannot be evaluated")
    if not isinstance(node, ast.BinOp):
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Constant):
            number = isinstance(part.value, int | float) and abs(part.value) <= _MAX_OPERAND
            if not number:
                raise Unreadable("arithmetic with operands other than plain numbers")
        elif not isinstance(part, _ARITHMETIC):
            raise Unreadable("an expression is not a value")


def error_of(functions: Sequence[Entry], calls: Sequence[Decoded], answers: Sequence[Any], category: str) -> str | None:
    """Return the mistake that BFCL's AST checker finds, such as ``missing_required``, or None if there is none."""
    checker = _module("eval_checker.ast_eval.ast_checker")
    language = _module("constants.enums").Language.PYTHON
    return _mistake(checker.ast_checker, functions, list(calls), list(answers), language, category, _MODEL)


def _mistake(check: Callable[..., dict[str, Any]], *args: Any) -> str | None:
    try:
        result = check(*args)
    except Exception as error:  # BFCL's checkers raise errors for answers with an unexpected type or length.
        return f"checker_error:{type(error).__name__}"
    return None if result["valid"] else str(result["error_type"])


def source(calls: Iterable[Decoded], allowed: Iterable[str]) -> list[str]:
    """Return calls as lines of Python, which the simulated classes evaluate.

    A call to a function that is not in ``allowed``, or with an invalid argument name, becomes ``unknown_function()``.
    """
    names = set(allowed)
    return [_line(name, arguments, names) for call in calls for name, arguments in call.items()]


def _line(name: str, arguments: Mapping[str, Any], names: set[str]) -> str:
    if name not in names or not all(isinstance(key, str) and key.isidentifier() for key in arguments):
        return "unknown_function()"
    return f"{name}({', '.join(f'{key}={_bounded(key, value)!r}' for key, value in arguments.items())})"


def _bounded(name: str, value: object) -> object:
    huge = name in _BOUNDED and isinstance(value, int | float) and abs(value) > _MAX_BOUNDED
    return float("nan") if huge else value


def execute(lines: Sequence[str], entry: Entry, run: str) -> list[str]:
    """Evaluate Python lines with the simulated classes, and return the outputs. Each ``run`` has separate instances."""
    outputs, _ = _module("eval_checker.multi_turn_eval.multi_turn_utils").execute_multi_turn_func_call(
        list(lines), entry["initial_config"], entry["involved_classes"], run, entry["id"]
    )
    return [str(output) for output in outputs]


def multi_turn_error(
    turns: Sequence[Sequence[Sequence[str]]], answers: Sequence[Any], entry: Entry, run: str
) -> str | None:
    """Return the mistake that BFCL's multi-turn checker finds in the calls of all turns so far, or None."""
    checker = _module("eval_checker.multi_turn_eval.multi_turn_checker")
    steps = [[list(step) for step in turn] for turn in turns]
    return _mistake(checker.multi_turn_checker, steps, list(answers), entry, "multi_turn_base", run)


def forget(run: str) -> None:
    """Delete a run's instances of the simulated classes. BFCL stores these instances in global variables."""
    instances = vars(_module("eval_checker.multi_turn_eval.multi_turn_utils"))
    for name in [name for name in instances if name.startswith(f"{run}_") and name.endswith("_instance")]:
        del instances[name]
