"""xgrammar, the grammar engine of vLLM and SGLang, used to test which answers toolsim's grammars accept.

The package requires torch, numpy and transformers. The functions used here never call them, so empty modules replace
them during the import. To install xgrammar without them, run ``pip install --no-deps xgrammar==0.2.8
apache-tvm-ffi==0.1.15.post2``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import pytest

_ABSENT = ("torch", "transformers", "triton", "numpy", "numpy.typing")


class _Nothing(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


@cache
def _xgrammar() -> Any:
    if importlib.util.find_spec("xgrammar") is None:
        pytest.skip("needs xgrammar: pip install --no-deps xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2")
    importlib.import_module("tvm_ffi")
    absent = [name for name in _ABSENT if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: _Nothing(name) for name in absent})
    try:
        importlib.import_module("xgrammar.testing")
        return importlib.import_module("xgrammar")
    finally:
        for name in absent:
            del sys.modules[name]


def _acceptor(grammar: Any) -> Callable[[str], bool]:
    accepts: Callable[[Any, str], bool] = _xgrammar().testing._is_grammar_accept_string
    return lambda text: accepts(grammar, text)


def gbnf(text: str) -> Callable[[str], bool]:
    """Return a function that checks whether a grammar in llama.cpp's notation accepts a complete answer."""
    return _acceptor(_xgrammar().Grammar.from_ebnf(text))


def structural_tag(form: Mapping[str, Any]) -> Callable[[str], bool]:
    """Validate a structural tag, and return a function that checks whether the tag accepts a complete answer."""
    xgrammar = _xgrammar()
    return _acceptor(xgrammar.Grammar.from_structural_tag(xgrammar.StructuralTag.model_validate(dict(form))))


def structural_tag_model() -> Any:
    """Return the engine's model class for structural tags."""
    return _xgrammar().StructuralTag


def json_schema(schema: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return a function that checks whether an engine that enforces this schema accepts a complete answer."""
    return _acceptor(_xgrammar().Grammar.from_json_schema(dict(schema)))
