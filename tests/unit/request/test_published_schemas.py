"""Tests that validate requests to vLLM and SGLang against the request models of those packages.

Installing the packages would require large GPU dependencies. Instead, the models are extracted from the source of an
installed package, or of an unpacked wheel (sglang) or sdist (vllm) in one of the folders in ``TOOLSIM_ENGINE_SOURCES``,
which are separated as in ``PATH``. Last run with vllm 0.33.0 and sglang 0.5.23.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic
import pytest
from support import engine_grammar
from toolsim.core.policy import Policy
from toolsim.core.report import Report
from toolsim.request.rewrite import rewrite_request

# For each package, the files that can contain its request models, and the type of ``response_format`` in chat requests.
PUBLISHED = {
    "vllm": (
        ("entrypoints/generate/base/protocol.py", "entrypoints/openai/protocol.py"),
        "AnyResponseFormat",
    ),
    "sglang": (("srt/entrypoints/openai/protocol.py",), "ResponseFormat | StructuralTagResponseFormat"),
}
_IMPORTS = ("pydantic", "typing", "typing_extensions", "dataclasses")


def source(package: str) -> str:
    """Return the source code of a package's request models, or skip the test if the code is not available."""
    roots = [
        Path(folder) / package for folder in os.environ.get("TOOLSIM_ENGINE_SOURCES", "").split(os.pathsep) if folder
    ]
    spec = importlib.util.find_spec(package)
    roots += [Path(folder) for folder in (spec.submodule_search_locations or ()) if spec is not None] if spec else []
    for root in roots:
        for name in PUBLISHED[package][0]:
            if (root / name).is_file():
                return (root / name).read_text()
    pytest.skip(f"no sources of {package} at hand (TOOLSIM_ENGINE_SOURCES)")


def defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            yield node.name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def response_format(package: str) -> Any:
    """Return the type of ``response_format`` in a package. Only the package's models that the type depends on are
    executed.
    """
    tree = ast.parse(source(package))
    by_name = {name: node for node in tree.body for name in defined(node)}
    wanted = ast.parse(PUBLISHED[package][1], mode="eval")
    needed: set[str] = set()
    queue: list[ast.AST] = [wanted]
    while queue:
        for node in ast.walk(queue.pop()):
            if isinstance(node, ast.Name) and node.id in by_name and node.id not in needed:
                needed.add(node.id)
                queue.append(by_name[node.id])
    body = [
        node
        for node in tree.body
        if (isinstance(node, ast.ImportFrom) and node.module in (*_IMPORTS, "__future__"))
        or needed & set(defined(node))
    ]
    # The models must be defined in a module, because pydantic resolves the names in annotations through the module.
    module = ModuleType(f"published_{package}")
    sys.modules[module.__name__] = module
    logger = logging.getLogger(package)
    # Two definitions are in other files of the package and need substitutes: the base class of vllm's models, which
    # keeps unknown fields, and the engine's model of structural tags.
    base = pydantic.create_model("OpenAIBaseModel", __config__=pydantic.ConfigDict(extra="allow"))
    module.__dict__.update(logger=logger, OpenAIBaseModel=base, StructuralTag=engine_grammar.structural_tag_model())
    exec(compile(ast.Module(body=body, type_ignores=[]), package, "exec"), module.__dict__)
    return eval(compile(wanted, package, "eval"), module.__dict__)


def asked(constrain: Any, *, required: bool) -> dict[str, Any]:
    """Return the body that a chat backend receives for a request with two tools."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    body = {
        "model": "Kimi-K2",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [
            {"type": "function", "function": {"name": "get_weather", "parameters": city, "strict": True}},
            {"type": "function", "function": {"name": "get_time"}},
        ],
        "tool_choice": "required" if required else "auto",
    }
    policy = Policy(constrain=constrain, engine="vllm")
    path = "/v1/chat/completions"
    written = rewrite_request("chat", path, json.dumps(body).encode(), policy, output_mode=None, report=Report())
    assert written is not None
    asked: dict[str, Any] = json.loads(written.body)
    return asked


@pytest.mark.parametrize("package", PUBLISHED)
@pytest.mark.parametrize(
    ("constrain", "required", "kind"),
    [
        ("json_schema", True, "ResponseFormat"),
        ("structural_tag", True, "Structur"),
        ("structural_tag", False, "Structur"),
    ],
)
def test_constraints_fit_the_published_models(package: str, constrain: str, required: bool, kind: str) -> None:
    """The request models of vLLM and SGLang accept every kind of constraint that toolsim sends, and keep all of its
    fields.
    """
    form = asked(constrain, required=required)["response_format"]
    read = pydantic.TypeAdapter(response_format(package)).validate_python(form)
    assert kind in type(read).__name__
    kept = read.model_dump(by_alias=True, exclude_unset=True)
    assert kept == form


@pytest.mark.parametrize("package", PUBLISHED)
def test_published_models_reject_other_forms(package: str) -> None:
    """The extracted models reject invalid formats, which proves that ``test_constraints_fit_the_published_models`` can
    fail.
    """
    adapter = pydantic.TypeAdapter(response_format(package))
    for wrong in ({"type": "gbnf"}, {"type": "json_schema", "json_schema": {"schema": {}}}, {"type": "structural_tag"}):
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_python(wrong)


@pytest.mark.parametrize("package", PUBLISHED)
def test_special_tokens_field_is_defined(package: str) -> None:
    """vLLM and SGLang define the field for special tokens, which toolsim sends for models that need it."""
    assert asked("off", required=False)["skip_special_tokens"] is False
    text = source(package)
    assert package == "vllm" or "skip_special_tokens: bool" in text
