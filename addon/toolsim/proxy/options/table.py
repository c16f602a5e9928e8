"""The table of all options, and their registration with mitmproxy. ``settings.py`` parses their values."""

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
        "Backend that answers requests. auto: an upstream, tried with the client's own API, then with chat "
        "completions, Responses and Messages, until one of the paths is not rejected (with the Messages API only if "
        f"it rejects the other two). {', '.join(get_args(ApiName))}: an upstream with this API, and no other one is "
        "tried. codex, local, scripted: a built-in backend answers requests addressed to the listener itself; codex "
        "runs the Codex app-server under your login, local runs a model file in this process, scripted is a "
        "deterministic model for trying things out.",
        ("auto", *get_args(ApiName), *BUILTIN),
    ),
    Option("model", "", "File (GGUF) of the model that toolsim_backend=local runs; it needs the extra [local]."),
    Option(
        "upstream",
        "",
        "URL of the backend for API requests addressed to any other host, for clients whose base URL cannot be set. A "
        "path in the URL replaces the part before /responses, /chat/completions or /models. All other requests are "
        "forwarded to the host to which they are addressed (with a built-in backend only if this option is set).",
    ),
    Option(
        "models",
        "",
        "File (TOML) that names the backend for each model: tables [[models]] with names (patterns such as haiku*; the "
        "first match applies), url, and optionally model (its name at the backend) and key (the key itself, or "
        "env:NAME). A request for any other model goes to the default backend, or gets a 404 if there is none. The "
        "file is reloaded when it changes. Empty: one backend serves all models.",
    ),
    Option(
        "engine",
        "auto",
        "Server software of the backend; other options set to auto depend on it. auto: detected once, by GET requests "
        "for pages that only one of the servers has; the first request waits at most a second for this. unknown: not "
        "detected, and nothing is assumed.",
        ("auto", "unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"),
    ),
    Option(
        "profiles",
        "auto",
        "Profiles with settings for each model, as written by toolsim tune. Of the profiles whose pattern matches the "
        "model of a request, the most specific one applies; options set explicitly are never overridden. auto: "
        "profiles in the user's folder (~/.config/toolsim/profiles), then those included with toolsim. off: no "
        "profiles. strict-tags: the same settings for any model, with all heuristics off: toolsim_untagged=off (tags "
        "only), toolsim_history=bracketed (with ids), toolsim_manifest=schemas (JSON schemas), toolsim_repair=off (no "
        "repairs) and toolsim_second_opinion=off (no second opinion). Any other value is a folder of profiles.",
    ),
    Option(
        "manifest",
        "auto",
        "Form in which the tools are shown to the model. auto: the form that works best with real models, currently "
        "calls. calls: each tool as a call with slots for its values. lines: the same, but the prompt requests several "
        "calls one per line, not as a list. schemas: each tool's JSON schema. hermes: the declarations that Hermes and "
        "Qwen models were trained on. typescript: function declarations, which take the fewest tokens.",
        ("auto", *FORMS),
    ),
    Option(
        "catalog_budget",
        0,
        "Size in characters above which the tool catalog starts with names only, one line per tool. The model looks up "
        "the tools that it needs with find_tools, within the same answer. Tools that the conversation has already "
        "called are shown again at the point of the call. 0 = always the complete catalog.",
    ),
    Option(
        "manifest_role",
        "auto",
        "Role of the message that shows the tools to the model. Use user for gateways that drop system messages. auto: "
        "developer over the Responses API, system over chat completions.",
        ("auto", "developer", "system", "user"),
    ),
    Option(
        "history",
        "auto",
        "Form in which earlier calls are shown to the model. auto: the form that suits the manifest, currently always "
        "tagged. tagged: exactly the form that the prompt requests for calls, without ids; each output then repeats "
        "the name and arguments of its call. bracketed: one line in brackets per call, with its ids, which the model "
        "cannot confuse with the form for new calls; each output refers to its call by id.",
        ("auto", "bracketed", "tagged"),
    ),
    Option(
        "sentinel",
        "auto",
        "Name of the tag that opens a call in the model's text. auto: tool_call, but call_tool for models whose "
        "tool_call tags Ollama tries to parse itself and fails (qwen3, glm-4.7). A unique name avoids clashes with "
        "text about tool calls.",
    ),
    Option(
        "repair",
        "safe",
        "Repair calls whose JSON is malformed, or whose values have the wrong types for the tool's schema. Values of "
        "strict tools are never changed. safe: a repair is applied only if the result satisfies the schema. off: a "
        "malformed call stays text, and wrong types are passed on with a warning.",
        ("safe", "off"),
    ),
    Option(
        "mode",
        "inject",
        "How tools are passed to the backend. inject: as text in the transcript. native: as the client's own tools, to "
        "a backend with the same API; its answers are searched for calls that its own parser missed. auto: native, but "
        "inject for models for which the backend refuses tools or misses a call.",
        ("auto", "inject", "native"),
    ),
    Option(
        "constrain",
        "auto",
        "Constraint that the backend enforces during sampling. auto: the constraints that a recognized engine "
        "supports, until it refuses them; json_schema if an answer must call; for strict tools gbnf with llama.cpp, "
        "structural_tag with vLLM and SGLang. off: none; only the prompt requests calls. json_schema: an answer that "
        "must call (tool_choice required, or a named function) is one JSON object that conforms to the tools' schemas; "
        "llama.cpp, vLLM, SGLang, Ollama, LM Studio and most hosted APIs support this, and all but the last two also a "
        "list of objects for several calls. gbnf: every call in the tag conforms to its tool's schema, and other text "
        "is unconstrained unless the answer must call; llama.cpp supports this. structural_tag: the same for vLLM and "
        "SGLang.",
        ("auto", "off", "json_schema", "gbnf", "structural_tag"),
    ),
    Option(
        "untagged",
        "on",
        "Recognize calls that the model writes without the tag: the JSON of a call, alone or in a code fence, or "
        "name(…), at the start or the end of the answer; and anywhere, a call between markers that models were trained "
        "on. on: recognized if the tool is on offer and, without such markers, the arguments fit its schema. off: such "
        "text stays text, but <use_tool> blocks count. no_use_tool: <use_tool> blocks stay text as well. With all of "
        "these values, a call that also occurs in a tool output of the same request is a quotation, with or without "
        "the tag, and stays text. all: like on, but quoted calls count too, for tools whose outputs state which call "
        "to make next.",
        ("on", "off", "no_use_tool", "all"),
    ),
    Option(
        "strict_policy",
        "error",
        "Handling of a call that violates a strict tool's schema. error: the answer fails (HTTP 422, or an error event "
        "in a stream). message: the assistant's text describes the error.",
        ("error", "message"),
    ),
    Option(
        "retry",
        0,
        "Maximum number of retries within one answer, 0 to 3: for a call that violates a strict tool's schema, is "
        "malformed beyond repair, is too large, is cut off, or names a tool that is not on offer, and for an answer "
        "that lacks a required call or the required JSON. The model is shown its own text and the error. Text that has "
        "already been streamed stays.",
    ),
    Option(
        "unknown_tool",
        "text",
        "Handling of a call of a tool that was never declared. With strict tools, it is a violation instead of text. A "
        "tool that tool_choice or the operator's lists exclude is never called, regardless of this option. text: it "
        "stays text; if the backend itself sends it as a call, it is described in text. call: the client gets it as a "
        "call, as from most servers, and can report the error to the model; most agent programs do, but some stop. "
        "retry: the model is retried, once or the number of times in toolsim_retry; after that the call becomes text.",
        ("text", "call", "retry"),
    ),
    Option(
        "second_opinion",
        "undeclared",
        "Re-prompt the model before the client gets its calls. undeclared: if an answer to the user consists only of a "
        "call, as text, of an undeclared tool, such as a greeting in JSON; an additional round without tools then "
        "requests a plain-text answer. on: also for calls that the model makes unprompted in response to the user. It "
        'sees only the tool and the user\'s request, and is asked whether the tool fits; after a "no" it is asked '
        "again, with the call. This takes one or two additional rounds per tool called, and until then no part of a "
        'call is streamed. The call is dropped only after two clear "no" answers. If no call remains, an additional '
        "round requests a plain-text answer. off: every answer is passed on unchanged.",
        ("off", "undeclared", "on"),
    ),
    Option(
        "fix_empty_final",
        "off",
        "Retry an empty answer after a tool output. on: without tools, so that the model has to answer in plain text. "
        "with_tools: with the same tools. off: the answer stays empty.",
        ("off", "on", "with_tools"),
    ),
    Option(
        "tool_use_mode",
        "",
        "Override the use of tools. enforced: an answer must call one of the tools on offer, unless it follows a tool "
        "output. relaxed: as the request specifies, but if the backend answers with an error, the request is repeated "
        "without its tools. disabled: no tools are offered. Empty: as the request specifies.",
        ("", "enforced", "relaxed", "disabled"),
    ),
    Option(
        "request_overrides",
        "",
        "JSON object whose fields replace those of a request with tools; null removes a field. Fields that only the "
        "client or toolsim can set (model, messages, tools, stream and the like) are not allowed.",
    ),
    Option(
        "request_defaults",
        "",
        "JSON object whose fields are added to a request with tools if the client does not set them. The fields that "
        "are not allowed in toolsim_request_overrides are not allowed here either.",
    ),
    Option(
        "transforms",
        (),
        "Names of request changes that certain backends need, or of presets (openai_compatible_reliability, "
        "content_tag_tool_call_fallback, deepseek_openrouter_compat, gemini_openrouter_compat). Changes to messages "
        "require toolsim_mode=native.",
    ),
    Option(
        "loop_limit",
        6,
        "Number of identical calls with identical output after which toolsim ends a loop across turns, with an answer "
        "that describes the loop; 0 = never. At half of that number, the prompt points out the repetition to the "
        "model. A changed output, another call or a new user message restarts the count.",
    ),
    Option(
        "max_rounds",
        8,
        "Maximum number of rounds (model turns) in one answer. At the limit, the last round's answer is returned "
        "unchanged.",
        minimum=1,
    ),
    Option(
        "stream_arguments",
        "buffered",
        "Streaming of arguments. buffered: a call is announced once it is complete and valid. incremental: arguments "
        "of non-strict tools are streamed as the model, or a backend that emits calls itself, generates them; a call "
        "that turns out to be malformed ends incomplete, and the answer ends as cut off.",
        ("buffered", "incremental"),
    ),
    Option(
        "output_mode",
        "openai-json",
        "Form of the calls. The request header x-proxy-output-mode overrides this option for one request. openai-json: "
        "the API's own form. obsidian-xml: in chat completions, each call is followed by its <use_tool> text. "
        "obsidian-xml-responses: the same in the Responses API instead. obsidian-xml-both: in both APIs.",
        ("openai-json", "obsidian-xml", "obsidian-xml-responses", "obsidian-xml-both"),
    ),
    Option(
        "stop_after_tools",
        "auto",
        "Handling of text after a call. auto: on for chat completions, whose messages have no place for such text, off "
        "for the Responses API. on: the text ends the turn and stops the backend; all adjacent calls count. first: the "
        "first call ends the turn. drop: the text is dropped, and the backend continues. off: the client gets the "
        "text.",
        ("auto", "on", "first", "drop", "off"),
    ),
    Option(
        "tool_block_max",
        0,
        "Maximum number of calls in one answer; 0 = no limit. If it is 1, the prompt says so.",
    ),
    Option(
        "tool_block_dedup",
        False,
        "Drop a call that repeats an earlier one in the same answer, including its arguments.",
    ),
    Option(
        "tool_block_delimiter",
        "\n",
        r"Text between <use_tool> blocks in output mode obsidian-xml; \n stands for a line break, \t for a tab.",
    ),
    Option(
        "tool_allowlist",
        (),
        "Names of the only tools that the model may see and call; empty = all. A name preceded by ! excludes that "
        "tool. Hosted tools, which a backend would run, are named by their type (web_search), mcp tools also by their "
        "server's label.",
    ),
    Option(
        "max_tool_bytes",
        200_000,
        "Maximum size in bytes of one call's arguments, and of one tool's output. A larger call fails (strict tools) "
        "or stays text; a larger output is replaced with an error object.",
        minimum=1,
    ),
    Option(
        "reasoning",
        "drop",
        "Handling of earlier reasoning that a client sends back. drop: the model does not see it. include: it precedes "
        "the model's text and calls, in <think> tags, as expected by models that reason across several calls.",
        ("drop", "include"),
    ),
    Option(
        "forward_hosted_tools",
        False,
        "Forward hosted tools, which the backend itself would run (web_search, mcp and the like), even if the request "
        "also has functions. Otherwise they are dropped, and a warning and a header (x-toolsim-dropped-tools) list "
        "them; the request is refused if its tool_choice requires one. If a request has only such tools, they are "
        "always forwarded, but over a backend with another API the request is refused.",
    ),
    # -- the proxy: logging and recording, access, limits --
    Option(
        "log",
        "text",
        "Format of the log. text: one line per turn, for people. json: one JSON object per line, for programs. off: no "
        "lines about turns, but all of mitmproxy's own messages.",
        ("text", "json", "off"),
    ),
    Option(
        "sse_telemetry",
        False,
        "End each event stream with a comment that repeats the log line as JSON. Some clients cannot parse comments.",
    ),
    Option(
        "api_key",
        "",
        "Key that clients must send as their Bearer token; it is not forwarded. Requests without it are rejected on "
        "every path. Clients that use this listener as their proxy send it in Proxy-Authorization, as a Bearer token "
        "or as the password for any user name. Required for serving the codex backend to other machines. file:PATH "
        "names a file with a key for each user, one line of the form NAME KEY or NAME sha256:HEX per user.",
    ),
    Option(
        "upstream_key",
        "",
        "Key that is sent to the backend as the Bearer token, instead of the client's. Empty: the client's own key is "
        "sent, unless it is the value of toolsim_api_key.",
    ),
    Option("codex_command", "codex app-server", "Command line that starts the Codex app-server."),
    Option(
        "capture",
        "",
        "Folder in which each finished exchange is recorded as one .flow file, without secrets; empty = no recording.",
    ),
    Option(
        "metrics_labels",
        (),
        "Additional labels for the metrics at /toolsim/metrics: model, tool, or both. Each model and each tool then "
        "has its own series, so clients that use many names create many series.",
    ),
    Option(
        "cors_origins",
        ("app://obsidian.md", "capacitor://localhost", "http://localhost:*", "http://127.0.0.1:*"),
        "Origins of web pages and Electron programs that may use the API. :* matches any port or none, and * alone "
        "matches any origin. Without toolsim_api_key, all other pages are refused, as are requests whose Host header "
        "is not an IP address, localhost, the machine's name, or the host of an origin listed here.",
    ),
    Option(
        "max_body_bytes",
        32 * 1024 * 1024,
        "Maximum decoded size in bytes of a request body that has to be parsed, and of a backend's answer, streamed or "
        "not. A larger request is answered with 413; a larger answer fails.",
        minimum=1,
    ),
    Option(
        "connect_timeout",
        10,
        "Seconds that connecting to a backend may take, including TLS; 0 = as long as the system allows.",
    ),
    Option(
        "idle_timeout",
        300,
        "Seconds of silence from the backend after which an answer fails; 0 = wait forever.",
    ),
    Option(
        "drain_timeout",
        25,
        "Seconds for which answers in progress may continue after SIGTERM or SIGINT (Ctrl-C); then they end with an "
        "error, and the proxy exits. A second signal makes it exit immediately; 0 = exit at the first signal.",
    ),
    # -- storage, and MCP servers --
    Option(
        "store",
        "",
        "Store for finished answers of the Responses API, so that later requests can refer to them. Empty: no store. "
        "memory: in this process. sqlite:PATH: a file on this machine, created if missing. redis://HOST:PORT (or "
        "rediss://, unix://): a Redis server, which several proxies can share. An answer is stored unless its request "
        "has store: false; each client key can read only its own answers. Limits follow a question mark, as in "
        "memory?answers=100000&bytes=268435456&days=30&background=16: the number of answers and conversations, of "
        "which the least recently used are deleted first; their total size; days after their last use; and "
        "simultaneous background answers, of which a single client key can use at most half while another key is "
        "waiting. With required=1, /toolsim/ready returns 503 while the store is failing.",
    ),
    Option(
        "mcp_config",
        "",
        "File of MCP servers whose tools every request gets, over any backend: a JSON object mcpServers, as in other "
        "MCP clients, with four additional keys: require_approval (always by default), allowed_tools, timeout (seconds "
        "for startup and for each call; 30 by default), and web_search (the tool that runs the web searches of "
        "requests). Empty = no servers.",
    ),
    Option(
        "mcp_hosts",
        (),
        "Hosts of MCP servers that a request's mcp tools may name, as host (port 443) or host:port, in addition to the "
        "servers in toolsim_mcp_config, which are named by their labels; the word config allows only the latter. The "
        "same applies to mcp_servers in the Messages API, which are refused otherwise. Empty: mcp tools are treated "
        "like any other hosted tool, see toolsim_forward_hosted_tools.",
    ),
    Option(
        "mcp_approval",
        "client",
        "Approver of calls that need approval. client: the client, through an mcp_approval_request of the Responses "
        "API; chat completions have no equivalent, so such a call is refused. operator: the answer waits for the "
        "command toolsim.approve or toolsim.refuse, in any API.",
        ("client", "operator"),
    ),
)


def register(loader: Loader | OptManager, environment: Mapping[str, str]) -> list[str]:
    """Register all options, with the predecessor's flags as defaults. Return a warning for each invalid flag."""
    defaults, warnings = from_environment(environment)
    for option in OPTIONS:
        default = defaults.get(option.name, option.default)
        loader.add_option(option.full_name, option.typespec, default, option.help, option.choices or None)
    return warnings
