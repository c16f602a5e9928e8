import pytest
from support.each import each
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool, ToolChoice
from toolsim.wire.tool_choice import hosted_choice, read_choice

F = Tool("f", "f")
G = Tool("g", "g", kind="custom")
NS_F = Tool("ns__h", "h", namespace="ns")
TOOLS = (F, G, NS_F)


def param_of(function, *arguments, **options):
    with pytest.raises(BadRequest) as caught:
        function(*arguments, **options)
    return caught.value.error.param


@each(
    ("value", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", frozenset({"f"}))),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", frozenset({"f"}))),
        ({"type": "custom", "name": "g"}, ToolChoice("required", frozenset({"g"}))),
        ({"type": "custom", "custom": {"name": "g"}}, ToolChoice("required", frozenset({"g"}))),
        ({"type": "function", "name": "h"}, ToolChoice("required", frozenset({"ns__h"}))),
        ({"type": "function", "name": "ns__h"}, ToolChoice("required", frozenset({"ns__h"}))),
        ({"type": "function", "name": "h", "namespace": "ns"}, ToolChoice("required", frozenset({"ns__h"}))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice("auto", frozenset({"f"})),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            ToolChoice("required", frozenset({"f"})),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "name": "g"}]},
            },
            ToolChoice("required", frozenset({"g"})),
        ),
        ({"type": "allowed_tools", "tools": []}, ToolChoice("auto", frozenset())),
    ],
)
def test_choices_are_read(value, choice):
    """Every format of ``tool_choice`` is converted to a ToolChoice that contains the tool names that the model uses."""
    assert read_choice(value, TOOLS, hosted=False, param="tool_choice") == (choice, [])


@pytest.mark.parametrize(
    ("value", "choice", "notes"),
    [
        ({"type": "web_search"}, ToolChoice(), ["tool_choice:web_search"]),
        ({"type": "mcp", "server_label": "x"}, ToolChoice(), ["tool_choice:mcp"]),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": n} for n in ("f", "gone")]},
            ToolChoice("auto", frozenset({"f"})),
            ["tool_choice:undeclared"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
            ToolChoice("auto", frozenset()),
            ["tool_choice:mcp"],
        ),
    ],
)
def test_ignored_choices_are_noted(value, choice, notes):
    """Parts of a tool choice that concern hosted tools are ignored and listed in the report."""
    assert read_choice(value, TOOLS, hosted=True, param="tool_choice") == (choice, notes)


def test_required_can_refer_to_a_hosted_tool():
    """If the client has only hosted tools, the choice "required" refers to the hosted tools. It is ignored and listed
    in the report.
    """
    assert read_choice("required", (), hosted=True, param="tool_choice") == (ToolChoice(), ["tool_choice:required"])


@pytest.mark.parametrize(
    ("value", "choice"),
    [("auto", ToolChoice()), ("none", ToolChoice("none")), ({"name": "f"}, ToolChoice("required", frozenset({"f"})))],
)
def test_legacy_function_call(value, choice):
    """The ``function_call`` field is accepted in its legacy format."""
    assert read_choice(value, TOOLS, hosted=False, param="function_call") == (choice, [])


@each(
    ("value", "param"),
    [
        ("any", "tool_choice"),
        (3, "tool_choice"),
        (True, "tool_choice"),
        ([], "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": 3}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": 3}, "tool_choice.name"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "function", "function": "f"}, "tool_choice.function"),
        ({"type": "custom", "custom": {}}, "tool_choice.custom.name"),
        ({"type": "function", "name": "gone"}, "tool_choice"),
        ({"type": "function", "name": "f", "namespace": "ns"}, "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "allowed_tools": {}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": ["auto"], "tools": []}, "tool_choice.mode"),
        ({"type": "allowed_tools", "tools": ["f"]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "tools": [{"name": "f"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "tools": [{"type": "function"}]}, "tool_choice.tools[0].name"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "gone"}]}, "tool_choice"),
    ],
)
def test_malformed_choice_is_refused(value, param):
    """A malformed choice, or a choice that cannot be fulfilled, causes an error with status 400 that gives the exact
    path of the field.
    """
    assert param_of(read_choice, value, TOOLS, hosted=False, param="tool_choice") == param


@pytest.mark.parametrize(
    ("value", "param"),
    [("required", "function_call"), ({}, "function_call.name"), ({"name": "gone"}, "function_call")],
)
def test_malformed_function_call_is_refused(value, param):
    """The error for a malformed legacy choice refers to ``function_call`` rather than to ``tool_choice``."""
    assert param_of(read_choice, value, TOOLS, hosted=False, param="function_call") == param


def test_required_without_tools_is_refused():
    """The choice "required" is refused if the request has no tool that can be called."""
    assert param_of(read_choice, "required", (), hosted=False, param="tool_choice") == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (None, None),
        ("auto", None),
        ("required", None),
        ("none", "none"),
        ({"type": "function", "name": "f"}, None),
        ({"type": "shell"}, None),
        ({"type": "mcp", "server_label": "x"}, {"type": "mcp", "server_label": "x"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function"}, {"type": "web_search"}, 3]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        ),
    ],
)
def test_choice_of_hosted_tools_is_forwarded(choice, left):
    """A choice of hosted tools is forwarded to the backend, without any part that concerns the client's tools."""
    assert hosted_choice(choice, {"f", "shell"}) == left
