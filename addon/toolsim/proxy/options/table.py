"""All options in one table, and their registration with mitmproxy. ``settings.py`` parses their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from mitmproxy.addonmanager import Loader
from mitmproxy.optmanager import OptManager

from toolsim.core.plan import ApiName
from toolsim.plugins import BUILTIN
from toolsim.proxy.legacy import from_environment
from toolsim.proxy.options.option import Option
from toolsim.request.forms import FORMS

OPTIONS = (
    Option(
        "backend",
        "auto",
        "Backend that answers requests. auto: an upstream, tried in the client's own API, then in chat completions, "
        "Responses and Messages until it does not reject the path (in the Messages API only if it rejects the other "
        f"two). {', '.join(get_args(ApiName))}: an upstream with this API, and no other one is tried. codex, local, "
        "scripted: a built-in backend answers requests that are addressed to the listener itself; codex runs the Codex "
        "app-server under your login, local runs a model file in this process, scripted is a deterministic model for "
        "trying things out.",
        ("auto", *get_args(ApiName), *BUILTIN),
    ),
    Option("model", "", "File (GGUF) of the model that toolsim_backend=local runs; it needs the extra [local]."),
    Option(
        "upstream",
        "",
        "URL of the backend for API requests that are addressed to any other host: for clients whose base URL cannot "
        "be set. A path in it replaces the part before /responses, /chat/completions or /models. All other requests "
        "pass to the host that they are addressed to (with a built-in backend only if this option is set).",
    ),
    Option(
        "models",
        "",
        "File (TOML) that names the backend for each model: tables [[models]] with names (patterns such as haiku*, the "
        "first match counts), url, and optionally model (its name at the backend) and key (a literal one, or "
        "env:NAME). A request for any other model goes to the default backend, or is a 404 without one. The file is "
        "read again when it changes. Empty: one backend answers for all models.",
    ),
    Option(
        "engine",
        "auto",
        "Server software of the backend; other options set to auto depend on it. auto: detected once, by GETs of "
        "pages that only one of them has; the first request waits at most a second for that. unknown: not detected, "
        "and nothing is assumed.",
        ("auto", "unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"),
    ),
    Option(
        "profiles",
        "auto",
        "Settings for each model, from files that toolsim tune writes: of those whose pattern matches the model of a "
        "request, the most specific profile applies; options set explicitly are never overridden. auto: those in the "
        "user's folder (~/.config/toolsim/profiles), then those that come with toolsim. off: none. strict-tags: the "
        "same settings for any model, with all heuristics off: toolsim_untagged=off (tags only), "
        "toolsim_history=bracketed (with ids), toolsim_manifest=schemas (JSON schemas), toolsim_repair=off (no "
        "repairs) and toolsim_second_opinion=off (no second opinion). Any other value is a folder of profiles.",
    ),
    Option(
        "manifest",
        "auto",
        "Form in which the tools are shown to the model. auto: the one that real models answer best, currently "
        "calls. calls: each tool as a call with slots for its values. lines: the same, but the prompt asks for several "
        "calls one by one, not as a list. schemas: its JSON schema. hermes: the declarations that Hermes and Qwen "
        "models were trained on. typescript: function declarations, the fewest tokens.",
        ("auto", *FORMS),
    ),
    Option(
        "catalog_budget",
        0,
        "Size in characters above which the tool catalog starts with names only: one line per tool. The model looks "
        "up the tools that it needs with find_tools, within the same answer. Tools that the conversation has called "
        "are shown again at the point of the call. 0 = always the complete catalog.",
    ),
    Option(
        "manifest_role",
        "auto",
        "Role of the message that shows the tools to the model. Some gateways drop system text: use user there. "
        "auto: developer over the Responses API, system over chat completions.",
        ("auto", "developer", "system", "user"),
    ),
    Option(
        "history",
        "auto",
        "Form in which earlier calls are shown to the model. auto: the one that suits the manifest, currently always "
        "tagged. tagged: exactly the form that the model is asked to use, without ids; each output then repeats the "
        "name and arguments of its call. bracketed: one line in brackets per call, with its ids, which the model "
        "cannot mistake for the form of a call; each output names its call by id.",
        ("auto", "bracketed", "tagged"),
    ),
    Option(
        "sentinel",
        "auto",
        "Name of the tag that opens a call in the model's text. auto: tool_call, but call_tool for models whose "
        "tool_call Ollama parses itself, and fails on (qwen3, glm-4.7). A private name avoids clashes with text "
        "about tool calls.",
    ),
    Option(
        "repair",
        "safe",
        "Repair calls whose JSON is malformed, or whose values have the wrong types for the tool's schema. No value of "
        "a strict tool is ever changed. safe: the result counts only if it satisfies the schema. off: a malformed call "
        "stays text, and wrong types are passed on with a warning.",
        ("safe", "off"),
    ),
    Option(
        "mode",
        "inject",
        "How tools are passed to the backend. inject: as text in the transcript. native: as the client's own tools, "
        "to a backend of the same API; its answers are searched for calls that its own parser missed. auto: native, "
        "and inject for models for which the backend refuses tools or misses a call.",
        ("auto", "inject", "native"),
    ),
    Option(
        "constrain",
        "auto",
        "Constraint that the backend is asked to enforce while it samples. auto: the ones that a recognized engine "
        "supports, until it refuses them; json_schema if an answer must call; for strict tools gbnf with llama.cpp, "
        "structural_tag with vLLM and SGLang. off: none; the prompt alone requests calls. json_schema: an answer that "
        "must call (tool_choice required, or a named function) is one JSON object by the tools' schemas; llama.cpp, "
        "vLLM, SGLang, Ollama, LM Studio and most hosted APIs support this, and all but the last two a list of objects "
        "for several calls. gbnf: every call in the tag conforms to its tool's schema, and text stays free unless the "
        "answer must call; llama.cpp supports this. structural_tag: the same for vLLM and SGLang.",
        ("auto", "off", "json_schema", "gbnf", "structural_tag"),
    ),
    Option(
        "untagged",
        "on",
        "Whether a call that the model writes without the tag counts: JSON of a call, alone or in a code fence, or "
        "name(…), at the start or at the end of the answer; and anywhere, a call between the markers that models were "
        "trained on. on: if its tool is on offer and, without such markers, its arguments fit the tool's schema. off: "
        "such text stays text, but <use_tool> blocks count. no_use_tool: these stay text as well. With each of them, a "
        "call that a tool output of the same request contains is quoted, with or without the tag, and stays text. all: "
        "as on, but quoted calls count too, for tools whose outputs say what to call next.",
        ("on", "off", "no_use_tool", "all"),
    ),
    Option(
        "strict_policy",
        "error",
        "What happens to a call that violates a strict tool's schema. error: the answer fails (HTTP 422, or an error "
        "event in a stream). message: the assistant's text describes the error.",
        ("error", "message"),
    ),
    Option(
        "retry",
        0,
        "Maximum number of retries within one answer, 0 to 3: for a call that violates a strict tool's schema, is "
        "malformed beyond repair, too large, cut off, or names a tool that is not on offer, and for an answer without "
        "a required call, or without the required JSON. The model is shown its own text and the fault. Text that has "
        "already been streamed stays.",
    ),
    Option(
        "unknown_tool",
        "text",
        "What happens to a call of a tool that was never declared. With strict tools it is a violation instead of "
        "text. A tool that tool_choice or the operator's lists exclude is never called, regardless of this option. "
        "text: it stays text; one that the backend itself sends as a call is described as text. call: the client gets "
        "it as a call, as from most servers, and can tell the model; most agent programs do, some stop. retry: the "
        "model is retried, once or as often as toolsim_retry says; after that the call becomes text.",
        ("text", "call", "retry"),
    ),
    Option(
        "second_opinion",
        "undeclared",
        "Re-prompts the model before the client gets its calls. undeclared: if an answer to the user consists only of "
        "a call, as text, of a tool that was never declared, such as a greeting in JSON; a further round without tools "
        "then asks for a plain-text answer. on: also for calls that the model makes unprompted in answer to the user. "
        'It sees only the tool and the user\'s request, and is asked whether the tool fits; after a "no" it is asked '
        "again, with the call. This takes one or two further rounds per tool called, and until then no part of a call "
        'is streamed. The call is dropped only after two clear "no" answers. If no call remains, a further round asks '
        "for a plain-text answer. off: every answer is passed on as it is.",
        ("off", "undeclared", "on"),
    ),
    Option(
        "fix_empty_final",
        "off",
        "Whether an empty answer after a tool output is retried. on: without tools, so that the model has to answer in "
        "plain text. with_tools: with the same tools. off: the answer stays empty.",
        ("off", "on", "with_tools"),
    ),
    Option(
        "tool_use_mode",
        "",
        "Overrides the use of tools. enforced: an answer must call one of the tools on offer, unless a tool output has "
        "just arrived. relaxed: as the request says, but a request that the backend answers with an error is repeated "
        "without its tools. disabled: no tools are offered. Empty: as the request says.",
        ("", "enforced", "relaxed", "disabled"),
    ),
    Option(
        "request_overrides",
        "",
        "Fields, as a JSON object, that replace those of a request with tools; null removes one. Fields that only the "
        "client or toolsim can decide (model, messages, tools, stream and the like) cannot be set.",
    ),
    Option(
        "request_defaults",
        "",
        "Fields, as a JSON object, that are added to a request with tools if the client does not set them; the fields "
        "that toolsim_request_overrides excludes cannot be set here either.",
    ),
    Option(
        "transforms",
        (),
        "Changes that certain backends need, by name, or by the name of a preset (openai_compatible_reliability, "
        "content_tag_tool_call_fallback, deepseek_openrouter_compat, gemini_openrouter_compat). Changes of messages "
        "need toolsim_mode=native.",
    ),
    Option(
        "loop_limit",
        6,
        "Number of identical calls with identical output after which toolsim ends a loop across turns, with an answer "
        "that names it; 0 = never. At half of that number, the prompt tells the model that it repeats itself. A "
        "changed output, another call or a new user message restarts the count.",
    ),
    Option(
        "max_rounds",
        8,
        "Maximum number of rounds (model turns) in one answer. At the limit the last round's answer is returned as it "
        "is.",
        minimum=1,
    ),
    Option(
        "stream_arguments",
        "buffered",
        "When arguments are streamed. buffered: a call is announced once it is complete and valid. incremental: "
        "arguments of non-strict tools are streamed while the model, or a backend that emits calls itself, writes "
        "them; a call that turns out to be malformed ends incomplete, and the answer as cut off.",
        ("buffered", "incremental"),
    ),
    Option(
        "output_mode",
        "openai-json",
        "Form of the calls. The request header x-proxy-output-mode overrides it for one request. openai-json: the "
        "API's own. obsidian-xml: over chat completions, each followed by its <use_tool> text. "
        "obsidian-xml-responses: over the Responses API instead. obsidian-xml-both: over both.",
        ("openai-json", "obsidian-xml", "obsidian-xml-responses", "obsidian-xml-both"),
    ),
    Option(
        "stop_after_tools",
        "auto",
        "What happens to other text after a call. auto: on for chat completions, whose messages have no place for "
        "such text, off for the Responses API. on: it ends the turn and stops the backend; adjacent calls all count. "
        "first: the first call ends the turn. drop: it is dropped, and the backend continues. off: the client gets it.",
        ("auto", "on", "first", "drop", "off"),
    ),
    Option(
        "tool_block_max",
        0,
        "Maximum number of calls in one answer; 0 = no limit. The prompt tells the model if it is 1.",
    ),
    Option(
        "tool_block_dedup",
        False,
        "Drop a call that repeats an earlier one of the same answer, arguments included.",
    ),
    Option(
        "tool_block_delimiter",
        "\n",
        r"Text between <use_tool> blocks in output mode obsidian-xml; \n stands for a line break, \t for a tab.",
    ),
    Option(
        "tool_allowlist",
        (),
        "Names of the only tools that the model may see and call; empty = all. A name after ! excludes that tool. "
        "Tools that a backend would run are named by their type (web_search), mcp tools also by their server's label.",
    ),
    Option(
        "max_tool_bytes",
        200_000,
        "Size limit in bytes of one call's arguments, and of one tool's output. A larger call fails (strict tools) "
        "or stays text; a larger output is replaced by an error object that says so.",
        minimum=1,
    ),
    Option(
        "reasoning",
        "drop",
        "Earlier reasoning that a client sends back. drop: the model does not see it. include: it precedes the model's "
        "text and calls, in <think> tags, as models that reason across several calls expect.",
        ("drop", "include"),
    ),
    Option(
        "forward_hosted_tools",
        False,
        "Forward the tools that the backend itself would run (web_search, mcp and the like) even if the request also "
        "has functions. Otherwise they are dropped, and a warning and a header (x-toolsim-dropped-tools) name them; "
        "the request is refused if its tool_choice requires one. A request that has only such tools always forwards "
        "them, and is refused over a backend of another API.",
    ),
    # -- the proxy: logging and recording, access, limits --
    Option(
        "log",
        "text",
        "Format of the log. text: one line per turn, for people. json: one JSON object per line, for programs. off: "
        "nothing about turns, and everything that mitmproxy itself logs.",
        ("text", "json", "off"),
    ),
    Option(
        "sse_telemetry",
        False,
        "End each event stream with a comment that repeats the log line as JSON. Some clients' parsers break on "
        "comments.",
    ),
    Option(
        "api_key",
        "",
        "Key that clients must send as their Bearer token; it is not forwarded. Requests without it are rejected on "
        "every path. Clients that use this listener as their proxy send it in Proxy-Authorization, as Bearer or as "
        "the password of any name. Required before the codex backend is served to other machines. file:PATH names a "
        "file with a key for each user, one line NAME KEY or NAME sha256:HEX each.",
    ),
    Option(
        "upstream_key",
        "",
        "Key that is sent to the backend as the Bearer token, instead of the client's. Empty: the client's own is "
        "sent, unless it is the one of toolsim_api_key.",
    ),
    Option("codex_command", "codex app-server", "Command line that starts the Codex app-server."),
    Option(
        "capture",
        "",
        "Folder in which each finished exchange is recorded as one .flow file, without secrets; empty = none.",
    ),
    Option(
        "metrics_labels",
        (),
        "Further labels of the metrics at /toolsim/metrics: model, tool, or both. Each model and each tool then has "
        "its own series, which are many if clients name many.",
    ),
    Option(
        "cors_origins",
        ("app://obsidian.md", "capacitor://localhost", "http://localhost:*", "http://127.0.0.1:*"),
        "Origins of web pages and Electron programs that may use the API. :* stands for any port or none, and * alone "
        "for any origin. Without toolsim_api_key all other pages are refused, and so are requests whose Host header is "
        "not an IP address, localhost, the machine's name, or the host of a page listed here.",
    ),
    Option(
        "max_body_bytes",
        32 * 1024 * 1024,
        "Size limit in bytes, decoded, of a request body that has to be read, and of a backend's answer, complete or "
        "streamed. A larger request is answered with 413; a larger answer fails.",
        minimum=1,
    ),
    Option(
        "connect_timeout",
        10,
        "Seconds that connecting to a backend may take, TLS included; 0 = as long as the system allows.",
    ),
    Option(
        "idle_timeout",
        300,
        "Seconds of silence from the backend after which an answer fails; 0 = wait forever.",
    ),
    Option(
        "drain_timeout",
        25,
        "Seconds that answers in progress may take after SIGTERM or SIGINT (Ctrl-C); then they end with an error, and "
        "the proxy exits. A second signal exits immediately; 0 = the first one does.",
    ),
    # -- storage, and MCP servers --
    Option(
        "store",
        "",
        "Where finished answers of the Responses API are stored, so that later requests can refer to them. Empty: "
        "nowhere. memory: in this process. sqlite:PATH: in a file on this machine, created if missing. "
        "redis://HOST:PORT (or rediss://, unix://): in a Redis server, which several proxies may share. An answer is "
        "stored unless its request says store: false; each client key reads only its own. Limits follow after a "
        "question mark, as in memory?answers=100000&bytes=268435456&days=30&background=16: the number of answers and "
        "conversations, of which the least recently used are deleted first; their total size; days after their last "
        "use; and simultaneous background answers, of which a single client key can use at most half while another "
        "key is waiting. With required=1, /toolsim/ready is 503 while the store fails.",
    ),
    Option(
        "mcp_config",
        "",
        "File of MCP servers whose tools every request gets, over any backend: a JSON object mcpServers, as in other "
        "MCP clients, with four more keys: require_approval (always by default), allowed_tools, timeout (seconds for "
        "one call, or to start; 30 by default), and web_search (the tool that makes the web searches that requests "
        "ask for). Empty = none.",
    ),
    Option(
        "mcp_hosts",
        (),
        "Hosts of MCP servers that a request's mcp tools may name, as host (port 443) or host:port, in addition to the "
        "servers of toolsim_mcp_config, which are named by their labels; the word config allows only these. The same "
        "applies to mcp_servers of the Messages API, which are refused otherwise. Empty: mcp tools are treated like "
        "any tool that the backend would run, see toolsim_forward_hosted_tools.",
    ),
    Option(
        "mcp_approval",
        "client",
        "Who approves calls that need approval. client: the client, by an mcp_approval_request of the Responses API; "
        "chat completions have no equivalent, so such a call is refused. operator: the answer waits for the command "
        "toolsim.approve or toolsim.refuse, over either API.",
        ("client", "operator"),
    ),
)


def register(loader: Loader | OptManager, environment: Mapping[str, str]) -> list[str]:
    """Register all options, with the predecessor's flags as defaults; return a warning for each invalid flag."""
    defaults, warnings = from_environment(environment)
    for option in OPTIONS:
        default = defaults.get(option.name, option.default)
        loader.add_option(option.full_name, option.typespec, default, option.help, option.choices or None)
    return warnings
