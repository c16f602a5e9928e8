"""Tests for the model catalog, and for selecting models."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from support.each import each
from toolsim.command_line import UsageError
from toolsim.eval.catalog import CATALOG, Model, differences, is_selected, missing, select
from toolsim.eval.command import main


def ids(words: str) -> list[str]:
    return [model.id for model in select(words)]


def test_ids_are_unique() -> None:
    assert len({model.id for model in CATALOG}) == len(CATALOG)


@each(
    ("words", "expected"),
    [
        ("qwen3:4b", ["qwen3:4b"]),
        ("qwen3-8b", ["qwen3:8b"]),
        ("huggingfacetb", ["smollm2"]),
        ("smollm2,qwen3:4b,smollm2", ["smollm2", "qwen3:4b"]),
        ("some-model, other/model:free", ["some-model", "other/model:free"]),
        ("", []),
        ("local,!qwen", ["llama3.2", "smollm2"]),
        ("mine,!mine", []),
        ("local,!qwen,qwen3:8b", ["llama3.2", "smollm2", "qwen3:8b"]),
        ("google,!google/gemini-*,!google/gemma-3-27b-it:*", []),
        ("google/gemma-3-27b-it:*", ["google/gemma-3-27b-it", "google/gemma-3-27b-it:free"]),
        ("unreliable", ["qwen-0.5b", "qwen-1.5b"]),
        ("no/such-*", []),
    ],
)
def test_words_select_models(words: str, expected: list[str]) -> None:
    """An exact ID, a base ID, a provider or a tag selects models in the catalog. Any other word is used as the name of
    a model on the server.
    """
    assert ids(words) == expected


def test_exclusion_without_a_match_is_an_error() -> None:
    """An exclusion such as ``!gemni-*`` is an error if it does not match a selected model. A name with ``:free``
    denotes a different model than the name without it.
    """
    for words, problem in (
        ("mine,llama3.2,!gemni-*", "!gemni-* matches none of the selected models: mine, llama3.2"),
        ("mine,!mine,!mine", "!mine matches none of the selected models: none"),
        (
            "free,!google/gemma-3-27b-it",
            "!google/gemma-3-27b-it matches none of the selected models: google/gemma-3-27b-it:free, meta-llama",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(f"--models: {problem}")):
            select(words)


def test_star_and_tags_select_models() -> None:
    """``*`` selects the entire catalog. A tag selects all models with that tag."""
    assert ids("*") == ids("all") == [model.id for model in CATALOG]
    assert ids("!google/gemini-2.0-flash-001:*") == [id for id in ids("stable") if id != "google/gemini-2.0-flash-001"]
    assert ids("all,!reliable") == [model.id for model in CATALOG if not model.tool_calling_reliable]
    assert ids("stable") == [model.id for model in CATALOG if "stable" in model.tags]
    assert not {"stable"} & {tag for model in select("*,!stable") for tag in model.tags}


def test_model_is_selected_by_each_word() -> None:
    """A model can be selected by its ID, its base ID, its provider, a tag, or ``*``."""
    model = Model("a/b", "b", "a", ("tools",))
    assert all(is_selected(model, (word,)) for word in ("a/b", "b", "a", "tools", "*"))
    assert not is_selected(model, ("c",))


def test_patterns_match_models_of_the_server() -> None:
    """Patterns also match models that only the server lists. Selected models that the server does not list are reported
    as missing.
    """
    served = ["google/gemini-9", "google/gemini-2.5-pro", "x/y:free"]
    assert [model.id for model in select("*:free", served)][-1] == "x/y:free"
    assert [model.id for model in select("google/gemini-*", served)][-1] == "google/gemini-9"
    assert missing("google", served) == [id for id in ids("google") if id != "google/gemini-2.5-pro"]
    assert missing("google/gemini-2.5-flash,mine", served) == []


def test_differences_from_a_stored_list() -> None:
    """The differences are the models that only the server lists, and the models that only the catalog lists. Variants
    with ``:nitro`` are ignored.
    """
    hosted = [model.id for model in CATALOG if "local" not in model.tags and not model.id.endswith(":nitro")]
    served = [*(id for id in hosted if id != "openai/gpt-5.2"), "new/model-b", "new/model-a"]
    assert differences(served).splitlines() == [
        f"not in the catalog (2 of {len(served)}): new/model-a, new/model-b",
        f"not listed by the server (1 of {len(hosted) + 1}): openai/gpt-5.2",
    ]


def test_command_queries_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """``toolsim eval models`` reads the server's list of models over HTTP. If the server does not answer, the command
    reports an error.
    """
    body = b'{"object": "list", "data": [{"id": "new/model", "object": "model", "created": 0, "owned_by": "new"}]}'

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert main(["models", "--base-url", f"http://127.0.0.1:{server.server_port}/v1"]) == 0
        server.shutdown()
    assert "not in the catalog (1 of 1): new/model\n" in capsys.readouterr().out
    assert main(["models", "--offline"]) == 2
    assert "--base-url" in capsys.readouterr().err
    assert main(["models", "--base-url", "http://127.0.0.1:9/v1"]) == 2
    assert "toolsim eval: http://127.0.0.1:9/v1 did not return a list of models (" in capsys.readouterr().err
