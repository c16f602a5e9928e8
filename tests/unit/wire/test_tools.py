import copy

import pytest
from support.each import each
from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import BadRequest
from toolsim.core.plan import Tool
from toolsim.wire.tools import (
    declares_tools,
    echo_tools,
    offered_natively,
    read_tools,
    schema_param,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FLAT = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
NESTED = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
F = Tool("f", "f", description="d", parameters=SCHEMA, strict=True)
SEARCH = {"type": "web_search"}
NAMESPACE = {
    "type": "namespace",
    "name": "ns",
    "description": "d",
    "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}, SEARCH],
}


def param_of(function, *arguments, **options):
    with pytest.raises(BadRequest) as caught:
        function(*arguments, **options)
    return caught.value.error.param


@each(
    ("body", "tools"),
    [
        ({}, ()),
        ({"tools": None, "functions": None}, ()),
        ({"tools": [FLAT]}, (F,)),
        ({"tools": [NESTED]}, (F,)),
        ({"tools": [{"function": NESTED["function"]}]}, (F,)),
        ({"tools": [{"name": "f"}]}, (Tool("f", "f"),)),
        ({"tools": [{"type": "function", "name": "f", "parameters": None, "strict": None}]}, (Tool("f", "f"),)),
        (
            {"tools": [{"type": "function", "name": "a.b-c_D", "parameters": {}}]},
            (Tool("a.b-c_D", "a.b-c_D", parameters={}),),
        ),
        ({"functions": [{"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}]}, (F,)),
        ({"tools": [FLAT, NESTED]}, (F,)),
        ({"tools": [{"type": "custom", "name": "c"}]}, (Tool("c", "c", kind="custom"),)),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "text"}}]}, (Tool("c", "c", kind="custom"),)),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "name": "c",
                        "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
                    }
                ]
            },
            (Tool("c", "c", kind="custom", grammar="lark:\nstart: x"),),
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "c",
                            "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "x"}},
                        },
                    }
                ]
            },
            (Tool("c", "c", kind="custom", grammar="regex:\nx"),),
        ),
        (
            {"tools": [NAMESPACE]},
            (Tool("ns__f", "f", namespace="ns"), Tool("ns__c", "c", kind="custom", namespace="ns")),
        ),
        (
            {
                "tools": [FLAT],
                "input": [
                    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "g"}]}
                ],
            },
            (F, Tool("g", "g")),
        ),
        (
            {"tools": [FLAT], "input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}]},
            (Tool("f", "f"),),
        ),
    ],
)
def test_read_tools(body, tools):
    """Every format of a tool declaration is converted to the same Tool, wherever the request contains the
    declaration.
    """
    assert read_tools(body)[0] == tools


def test_hosted_tools_stay_as_sent():
    """Tools that the client does not run are returned separately, in their original order and form."""
    mcp = {"type": "mcp", "server_label": "x"}
    assert read_tools({"tools": [SEARCH, FLAT, mcp, NAMESPACE]})[1] == (SEARCH, mcp, SEARCH)


@each(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "f"}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [FLAT, None]}, "tools[1]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": 3, "name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": 3}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a\n"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a" * 129}]}, "tools[0].name"),
        ({"tools": [FLAT, {"type": "function", "function": {}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": 3}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "name": "f", "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{"type": "function", "name": "f", "description": 1}]}, "tools[0].description"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
        ({"tools": [{"type": "custom", "name": "c", "format": 1}]}, "tools[0].format"),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}, "tools[0].format.definition"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {}}}}]},
            "tools[0].custom.format.grammar.definition",
        ),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}, "tools[0].tools[0].type"),
        ({"functions": [{"name": 1}]}, "functions[0].name"),
        ({"functions": 1}, "functions"),
        ({"input": [{}, {"type": "additional_tools", "tools": [{}]}]}, "input[1].tools[0].type"),
        ({"tools": [FLAT, {"type": "function", "name": "f"}]}, "tools[1].name"),
        ({"tools": [FLAT, {"type": "custom", "name": "f"}]}, "tools[1].name"),
        (
            {"tools": [NAMESPACE, {"type": "function", "function": {"name": "ns__f", "strict": True}}]},
            "tools[1].function.name",
        ),
    ],
)
def test_malformed_tools(body, param):
    """A malformed tool declaration causes an error with status 400 that gives the exact path of the field."""
    assert param_of(read_tools, body) == param


def test_message_names_expectation_and_value():
    """The error for a malformed tool declaration states the expected and the received value. A long received value is
    shortened.
    """
    with pytest.raises(BadRequest, match=r"expected a string that matches .* but got 'a b' instead"):
        read_tools({"tools": [{"type": "function", "name": "a b"}]})
    with pytest.raises(BadRequest) as caught:
        read_tools({"tools": [{"type": "function", "name": " " * 100_000}]})
    assert len(caught.value.error.message) < 300


@each(
    ("body", "declares"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"functions": []}, False),
        ({"tools": [SEARCH, {"type": "mcp"}]}, False),
        ({"tools": [SEARCH, FLAT]}, True),
        ({"tools": [{"type": "custom", "name": "c"}]}, True),
        ({"tools": [NAMESPACE]}, True),
        ({"tools": [{}]}, True),
        ({"tools": "x"}, True),
        ({"functions": [{"name": "f"}]}, True),
        ({"input": [{"type": "additional_tools", "tools": [FLAT]}]}, True),
        ({"input": [{"type": "additional_tools", "tools": [SEARCH]}]}, False),
        ({"input": "tools"}, False),
    ],
)
def test_declares_tools(body, declares):
    """A request declares tools if it contains a client tool, even a malformed one. Hosted tools alone do not count as
    declared tools.
    """
    assert declares_tools(body) is declares


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
PLACES = [
    {"name": "f", "description": "D", "function": {"parameters": SCHEMA, "strict": True}},
    {"parameters": SCHEMA, "strict": True, "function": {"name": "f", "description": "D"}},
    {"name": "f", "description": "D", "parameters": SCHEMA, "strict": True, "function": {"name": None, "strict": None}},
    {
        "name": "g",
        "parameters": {},
        "function": {"name": "f", "parameters": SCHEMA, "description": "D", "strict": True},
    },
]


@pytest.mark.parametrize("declared", PLACES)
def test_outer_and_inner_fields_are_read(declared):
    """The fields of a function are found both in ``function`` and next to it. The fields in ``function`` take
    precedence.
    """
    tool = {"type": "function", **declared}
    (read,), _ = read_tools({"tools": [tool]})
    assert (read.name, read.description, read.parameters, read.strict) == ("f", "D", SCHEMA, True)
    echoed = {"type": "function", "name": "f", "description": "D", "parameters": SCHEMA, "strict": True}
    assert echo_tools([tool]) == [echoed]


SHELL = {"type": "shell", "environment": {"type": "local"}}
CONTAINER = {"type": "shell", "environment": {"type": "container_auto"}}


def test_tools_declared_by_type():
    """A tool that is declared by type is a client tool in the Responses API, but a hosted tool in chat completions."""
    declared = [SHELL, CONTAINER, {"type": "apply_patch"}, {"type": "tool_search"}]
    tools, hosted = read_tools({"input": "hi", "tools": declared})
    assert [(tool.name, tool.kind) for tool in tools] == [("shell", "shell"), ("apply_patch", "apply_patch")]
    assert list(hosted) == [CONTAINER, {"type": "tool_search"}]
    assert declares_tools({"input": "hi", "tools": [SHELL]})
    assert not declares_tools({"input": "hi", "tools": [CONTAINER]})
    assert not declares_tools({"messages": [], "tools": [SHELL]})
    assert read_tools({"messages": [], "tools": declared})[0] == ()
    left = offered_natively({"input": "hi", "tools": declared}, {"apply_patch"}, [CONTAINER])
    assert left["tools"] == [CONTAINER, {"type": "apply_patch"}]


@pytest.mark.parametrize("kind", ["shell_call", "local_shell_call", "apply_patch_call", "tool_search_call"])
def test_call_item_type_is_not_a_client_tool(kind: str) -> None:
    """A tool with the type of a call item, such as ``shell_call``, is not a client tool, and is left to the backend."""
    declared = {"type": kind, "execution": "client"}
    assert read_tools({"input": "hi", "tools": [declared]}) == ((), (declared,))


def test_schema_param():
    """``schema_param`` returns the path of a tool's schema in the request."""
    body = {
        "tools": [SEARCH, NESTED],
        "input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "g"}]}],
    }
    request = ClientRequest("responses", body, ())
    assert schema_param(request, "f") == "tools[1].function.parameters"
    assert schema_param(request, "g") == "input[0].tools[0].parameters"


def test_echo_tools():
    """In a response, functions are shown in flat form with all keys. All other tools are shown exactly as the client
    sent them.
    """
    bare = {"type": "function", "name": "g", "description": None, "parameters": None, "strict": None}
    assert echo_tools([NESTED, {"name": "g"}, SEARCH, NAMESPACE]) == [FLAT, bare, SEARCH, NAMESPACE]
    assert echo_tools(None) == []


def test_name_next_to_its_function_is_used():
    """If the ``function`` object of a tool declaration contains no name, the name next to ``function`` is used."""
    declared = {"type": "function", "name": "f", "strict": True, "function": {"description": "d", "parameters": SCHEMA}}
    assert read_tools({"tools": [declared]}) == ((F,), ())
    both = {"type": "function", "name": "outer", "function": {"name": "f"}}
    assert read_tools({"tools": [both]})[0][0].name == "f"


def test_tools_loaded_by_a_search():
    """Tools that a tool search has returned can be called. The search tool itself remains a hosted tool."""
    body = {"tools": [{"type": "tool_search"}], "input": [{"type": "tool_search_output", "tools": [FLAT]}]}
    assert declares_tools(body)
    assert read_tools(body) == ((F,), ({"type": "tool_search"},))


def test_equal_declarations_are_the_same_object() -> None:
    """Equal declarations yield the same cached Tool object, and different declarations yield different objects."""
    one = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
    other = copy.deepcopy(one)
    first, _ = read_tools({"tools": [one], "messages": [{"role": "user", "content": "a"}]})
    again, _ = read_tools({"tools": [other], "messages": []})
    assert first[0] is again[0]
    shell = {"type": "shell"}
    assert read_tools({"tools": [shell], "messages": []}) != read_tools({"tools": [shell], "input": []})
    found = {"type": "additional_tools", "tools": [one]}
    later = [read_tools({"input": [{"type": "message"}, found, *[{"type": "message"}] * more]})[0] for more in (0, 5)]
    assert later[0][0] is later[1][0]
    for changed in ({"tools": [one, one]}, {"tools": [{**one, "function": {"name": "f", "parameters": {}}}]}):
        assert read_tools(changed)[0][0] is not first[0]
    assert read_tools({"tools": [{"type": "function", "name": "f", "strict": True}]})[0][0].strict is True
    assert read_tools({"tools": [{"type": "function", "name": "f", "strict": False}]})[0][0].strict is False
    for _ in range(2):
        with pytest.raises(BadRequest):
            read_tools({"tools": [{"type": "function", "name": "no name"}]})
    large = {"tools": [{"type": "function", "name": "f", "description": "x" * 300_000}]}
    assert read_tools(large)[0] == read_tools(large)[0]
