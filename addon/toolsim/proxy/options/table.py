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
        "Backend that answers requests. auto: an upstream server; toolsim tries the client's own API, then chat "
        f"completions, Responses and Messages, until the server accepts a path. {', '.join(get_args(ApiName))}: an "
        f"upstream server, used only with this API. {', '.join(BUILTIN)}: a built-in backend, which answers requests "
        f"addressed to the listener itself; {', '.join(f'{name} {each.help}' for name, each in BUILTIN.items())}.",
        ("auto", *get_args(ApiName), *BUILTIN),
    ),
    Option("model", "", "Model file (GGUF) that toolsim_backend=local runs; requires the extra [local]."),
    Option(
        "upstream",
        "",
        "URL of the backend for API requests that are addressed to other hosts, for clients whose base URL cannot be "
        "changed. A path in the URL replaces the part of the request path before /responses, /chat/completions or "
        "/models. All other requests are forwarded to the host to which they are addressed (with a built-in backend "
        "only if this option is set).",
    ),
    Option(
        "models",
        "",
        "TOML file that assigns a backend to each model. Each [[models]] table has names (patterns such as haiku*; "
        "the first match applies), url, and optionally model (the model's name at the backend) and key (the key "
        "itself, or env:NAME). A request for any other model goes to the default backend, or is rejected with a 404 "
        "if there is no default backend. The file is reloaded when it changes. Empty: one backend serves all models.",
    ),
    Option(
        "engine",
        "auto",
        "Server software of the backend; other options that are set to auto depend on it. auto: toolsim detects the "
        "software once, with GET requests for pages that only one kind of server has; the first request waits at "
        "most a second for the detection. unknown: toolsim does not detect the software and assumes no special "
        "features.",
        ("auto", "unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"),
    ),
    Option(
        "profiles",
        "auto",
        "Profiles with settings for each model, as written by toolsim tune. The profile with the most specific "
        "pattern that matches the model of a request applies; a profile never overrides an option that you set "
        "explicitly. auto: profiles in the user's folder (~/.config/toolsim/profiles), then the profiles included "
        "with toolsim. off: no profiles. strict-tags: a built-in profile for all models that disables all "
        "heuristics. It sets toolsim_untagged=off, toolsim_history=bracketed, toolsim_manifest=schemas, "
        "toolsim_repair=off and toolsim_second_opinion=off. Any other value is the path of a folder with profiles.",
    ),
    Option(
        "manifest",
        "auto",
        "Form in which the prompt shows the tools to the model. auto: the form that works best with real models, "
        "currently calls. calls: each tool as a call with slots for its values. lines: like calls, but the prompt "
        "requests several calls one per line instead of as a list. schemas: each tool's JSON schema. hermes: the "
        "declarations that Hermes and Qwen models were trained on. typescript: function declarations, which take the "
        "fewest tokens.",
        ("auto", *FORMS),
    ),
    Option(
        "catalog_budget",
        0,
        "Size in characters above which the tool catalog contains only names, one line per tool. The model looks up "
        "tools with find_tools, within the same answer. If the conversation contains calls of a tool, the prompt "
        "also shows the tool's definition at its first call. 0 = always the complete catalog.",
    ),
    Option(
        "manifest_role",
        "auto",
        "Role of the message that shows the tools to the model. Set it to user for gateways that drop system "
        "messages. auto: developer over the Responses API, system over chat completions.",
        ("auto", "developer", "system", "user"),
    ),
    Option(
        "history",
        "auto",
        "Form in which the prompt shows earlier calls to the model. auto: the form that suits the manifest, "
        "currently always tagged. tagged: the form that the prompt requests for new calls, without ids; each output "
        "repeats the name and arguments of its call. bracketed: one line in brackets per call, with ids, which the "
        "model cannot confuse with the form for new calls; each output refers to its call by id.",
        ("auto", "bracketed", "tagged"),
    ),
    Option(
        "sentinel",
        "auto",
        "Name of the tag that opens a call in the model's text. auto: tool_call, but call_tool for models whose "
        "tool_call tags Ollama tries and fails to parse itself (qwen3, glm-4.7). A unique name avoids clashes with "
        "text about tool calls.",
    ),
    Option(
        "repair",
        "safe",
        "Repair of calls whose JSON is malformed, or whose values have the wrong types for the tool's schema. Values "
        "for strict tools are never changed. safe: a call is repaired only if the result matches the schema. off: a "
        "malformed call stays text, and values of the wrong type are passed on with a warning.",
        ("safe", "off"),
    ),
    Option(
        "mode",
        "inject",
        "Method for passing tools to the backend. inject: as text in the prompt. native: as the client's original "
        "tools, to a backend with the same API; toolsim searches the answers for calls that the backend's parser "
        "missed. auto: native, or inject for models for which the backend has refused tools or missed a call.",
        ("auto", "inject", "native"),
    ),
    Option(
        "constrain",
        "auto",
        "Constraint that the backend enforces during sampling. auto: the constraints that a recognized engine "
        "supports, until it refuses them; json_schema if the answer must be a call; for strict tools, gbnf with "
        "llama.cpp, and structural_tag with vLLM and SGLang. off: no constraint; only the prompt requests calls. "
        "json_schema: an answer that must be a call (tool_choice required, or a named function) is a JSON object "
        "that conforms to the tools' schemas. llama.cpp, vLLM, SGLang, Ollama, LM Studio and most hosted APIs "
        "support this constraint; all except LM Studio and hosted APIs also support a list of objects for several "
        "calls. gbnf: every tagged call conforms to its tool's schema, and other text is unconstrained unless the "
        "answer must be a call; supported by llama.cpp. structural_tag: like gbnf, but for vLLM and SGLang.",
        ("auto", "off", "json_schema", "gbnf", "structural_tag"),
    ),
    Option(
        "untagged",
        "on",
        "Recognition of calls that the model writes without the tag. At the start or the end of an answer, toolsim "
        "recognizes the JSON of a call, alone or in a code fence, and name(…). Anywhere in an answer, it recognizes "
        "calls between markers that models were trained on. Except with the value all, a call that also occurs in a "
        "tool output of the same request is a quotation, with or without the tag, and stays text. on: an untagged "
        "call counts if its tool is on offer; a call without markers must also match the tool's schema. off: "
        "untagged calls stay text, except for <use_tool> blocks. no_use_tool: like off, but <use_tool> blocks also "
        "stay text. all: like on, but calls that the model quotes also count, for tools whose outputs specify the "
        "next call.",
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
        "Maximum number of retries within one answer, 0 to 3. toolsim retries if a call violates a strict tool's "
        "schema, is malformed beyond repair, is too large, is cut off, or names a tool that is not on offer. It also "
        "retries if an answer lacks a required call or the required JSON. A retry shows the model its faulty answer "
        "and the error. Text that has already been streamed stays.",
    ),
    Option(
        "unknown_tool",
        "text",
        "Handling of a call of an undeclared tool. If the request has strict tools, such a call is a violation. "
        "toolsim never passes on calls of tools that tool_choice or the operator's lists exclude, regardless of this "
        "option. text: the call stays text; if the backend sends a structured call, toolsim describes it in text. "
        "call: the client receives the call, as from most servers, and can report the error to the model; most agent "
        "programs do so, but some stop. retry: toolsim retries once, or as often as toolsim_retry allows; after "
        "that, the call becomes text.",
        ("text", "call", "retry"),
    ),
    Option(
        "second_opinion",
        "undeclared",
        "Re-prompting of the model before the client receives a needless call. undeclared: if an answer to the user "
        "consists only of a call of an undeclared tool, written as text, such as a greeting in JSON, an additional "
        "round without tools requests a plain-text answer. on: like undeclared, but toolsim also checks calls that the "
        "model makes unprompted in response to the user. It shows the model the tool and the user's request, and asks "
        'whether the tool fits; after a "no", it asks about the call itself. The questions take one or two additional '
        "rounds per tool called, during which no part of a call is streamed. toolsim drops the call only after two "
        'clear "no" answers. If no call remains, an additional round requests a plain-text answer. off: every call is '
        "passed on.",
        ("off", "undeclared", "on"),
    ),
    Option(
        "fix_empty_final",
        "off",
        "Retry after an empty answer to a tool output. on: the retry has no tools, so that the model must answer in "
        "plain text. with_tools: the retry has the same tools. off: no retry; the answer stays empty.",
        ("off", "on", "with_tools"),
    ),
    Option(
        "tool_use_mode",
        "",
        "Override for the client's tool_choice. enforced: an answer must call one of the tools on offer, unless it "
        "follows a tool output. relaxed: as the request specifies, but if the backend answers with an error, toolsim "
        "repeats the request without tools. disabled: no tools are offered. Empty: as the request specifies.",
        ("", "enforced", "relaxed", "disabled"),
    ),
    Option(
        "request_overrides",
        "",
        "JSON object whose fields replace the fields of a request with tools; null removes a field. Fields that only "
        "the client or toolsim can set, such as model, messages, tools and stream, are not allowed.",
    ),
    Option(
        "request_defaults",
        "",
        "JSON object whose fields are added to a request with tools if the client does not set them. Fields that are "
        "not allowed in toolsim_request_overrides are not allowed in this option either.",
    ),
    Option(
        "transforms",
        (),
        "Changes to requests that certain backends require, by name, or presets of several changes "
        "(openai_compatible_reliability, content_tag_tool_call_fallback, deepseek_openrouter_compat, "
        "gemini_openrouter_compat). Changes to messages require toolsim_mode=native.",
    ),
    Option(
        "loop_limit",
        6,
        "Number of identical calls with identical output after which toolsim ends a loop across turns, with an "
        "answer that describes the loop; 0 = never. At half of this number, the prompt points out the repetition to "
        "the model. A changed output, a different call or a new user message resets the count.",
    ),
    Option(
        "max_rounds",
        8,
        "Maximum number of rounds (requests to the backend) in one answer. At the limit, the last round's answer is "
        "returned unchanged.",
        minimum=1,
    ),
    Option(
        "stream_arguments",
        "buffered",
        "Streaming of arguments. buffered: a call is sent once it is complete and valid. incremental: arguments for "
        "non-strict tools are streamed as the model, or a backend that emits calls itself, generates them; a call "
        "that turns out to be malformed stays incomplete, and the answer ends as truncated.",
        ("buffered", "incremental"),
    ),
    Option(
        "output_mode",
        "openai-json",
        "Format of the calls that the client receives. The request header x-proxy-output-mode overrides this option "
        "for one request. openai-json: the API's own format. obsidian-xml: in chat completions, each call is "
        "followed by its <use_tool> text. obsidian-xml-responses: in the Responses API, each call is followed by its "
        "<use_tool> text. obsidian-xml-both: in both APIs, each call is followed by its <use_tool> text.",
        ("openai-json", "obsidian-xml", "obsidian-xml-responses", "obsidian-xml-both"),
    ),
    Option(
        "stop_after_tools",
        "auto",
        "Handling of text after a call. auto: on for chat completions, whose messages cannot contain text after a "
        "call, and off for the Responses API. on: the text ends the turn and stops the backend; all adjacent calls "
        "count. first: the first call ends the turn. drop: the text is dropped, and the backend continues. off: the "
        "client receives the text.",
        ("auto", "on", "first", "drop", "off"),
    ),
    Option(
        "tool_block_max",
        0,
        "Maximum number of calls in one answer; 0 = no limit. With a limit of 1, the prompt states it.",
    ),
    Option(
        "tool_block_dedup",
        False,
        "Drop a call that repeats an earlier call with the same arguments in the same answer.",
    ),
    Option(
        "tool_block_delimiter",
        "\n",
        r"Text between <use_tool> blocks in output mode obsidian-xml; \n stands for a line break, \t for a tab.",
    ),
    Option(
        "tool_allowlist",
        (),
        "Names of the only tools that the model can see and call; empty = all. A name preceded by ! excludes the "
        "tool. Identify hosted tools, which a backend would run, by their type (web_search), and mcp tools by their "
        "type or their server's label.",
    ),
    Option(
        "max_tool_bytes",
        200_000,
        "Maximum size in bytes of the arguments of a call, and of a tool output. A larger call fails (strict tools) "
        "or stays text; a larger output is replaced with an error object.",
        minimum=1,
    ),
    Option(
        "reasoning",
        "drop",
        "Handling of earlier reasoning that a client sends back. drop: the model does not see the reasoning. "
        "include: the reasoning precedes the model's text and calls, in <think> tags, as models that reason across "
        "several calls expect.",
        ("drop", "include"),
    ),
    Option(
        "forward_hosted_tools",
        False,
        "Forward hosted tools, which the backend itself would run (such as web_search and mcp), even if the request "
        "also has functions. By default, toolsim drops hosted tools if the request has functions, and lists them in "
        "a warning and in the header x-toolsim-dropped-tools; it refuses the request if tool_choice requires a "
        "dropped tool. If a request has only hosted tools, they are always forwarded, but toolsim refuses the "
        "request if the backend has another API.",
    ),
    # -- the proxy: logging and recording, access, limits --
    Option(
        "log",
        "text",
        "Format of the log. text: one line per turn, for people. json: one JSON object per line, for programs. off: "
        "only mitmproxy's own messages.",
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
        "Key that clients must send as a Bearer token; toolsim does not forward it. Requests without the key are "
        "rejected on every path. Clients that use this listener as their proxy send the key in Proxy-Authorization, "
        "as a Bearer token or as the password for any user name. The key is required to serve the codex backend to "
        "other machines. file:PATH names a file with a key for each user, with one line of the form NAME KEY or NAME "
        "sha256:HEX per user.",
    ),
    Option(
        "upstream_key",
        "",
        "Key that toolsim sends to the backend as the Bearer token, instead of the client's key. Empty: toolsim "
        "sends the client's own key, unless it is the value of toolsim_api_key.",
    ),
    Option("codex_command", "codex app-server", "Command that starts the Codex app-server."),
    Option(
        "capture",
        "",
        "Folder in which each finished exchange is recorded as one .flow file, without secrets; empty = no recording.",
    ),
    Option(
        "metrics_labels",
        (),
        "Additional labels for the metrics at /toolsim/metrics: model, tool, or both. Each model and each tool then "
        "has a separate series, so clients that use many names create many series.",
    ),
    Option(
        "cors_origins",
        ("app://obsidian.md", "capacitor://localhost", "http://localhost:*", "http://127.0.0.1:*"),
        "Origins of web pages and Electron programs that are allowed to use the API. In an origin, :* matches any "
        "port or none; * alone matches any origin. Without toolsim_api_key, all other pages are refused, as are "
        "requests whose Host header is not an IP address, localhost, the machine's name, or the host of an origin "
        "listed here.",
    ),
    Option(
        "max_body_bytes",
        32 * 1024 * 1024,
        "Maximum size in bytes, after decompression, of a request body that must be parsed, and of a backend's "
        "answer, streamed or non-streamed. A larger request is rejected with a 413; a larger answer fails.",
        minimum=1,
    ),
    Option(
        "connect_timeout",
        10,
        "Maximum number of seconds for connecting to a backend, including TLS; 0 = the operating system's limit.",
    ),
    Option(
        "idle_timeout",
        300,
        "Number of seconds without data from the backend after which an answer fails; 0 = no limit.",
    ),
    Option(
        "drain_timeout",
        25,
        "Number of seconds for which answers in progress can continue after SIGTERM or SIGINT (Ctrl-C). After that "
        "time, they end with an error, and the proxy exits. A second signal makes the proxy exit immediately; 0 = "
        "exit at the first signal.",
    ),
    # -- storage, and MCP servers --
    Option(
        "store",
        "",
        "Store for finished answers of the Responses API, so that later requests can refer to them. Empty: no store. "
        "memory: the memory of this process. sqlite:PATH: a file on this machine, created if missing. "
        "redis://HOST:PORT (or rediss://, unix://): a Redis server, which several proxies can share. toolsim stores "
        "an answer unless its request has store: false; each client key can read only its own answers. Add limits "
        "after a question mark, as in memory?answers=100000&bytes=268435456&days=30&background=16. answers limits "
        "the number of answers and conversations, and bytes their total size; the least recently used are deleted "
        "first. days is the number of days after the last use. background limits the number of simultaneous "
        "background answers, of which a client key can use at most half while another key is waiting. With "
        "required=1, /toolsim/ready returns 503 while the store is failing.",
    ),
    Option(
        "mcp_config",
        "",
        "File of MCP servers whose tools are added to every request, over any backend. The file contains a JSON "
        "object mcpServers, as for other MCP clients, with four additional keys: require_approval (always by "
        "default), allowed_tools, timeout (in seconds, for startup and for each call; 30 by default), and web_search "
        "(the tool that runs the web searches of requests). Empty = no servers.",
    ),
    Option(
        "mcp_hosts",
        (),
        "Hosts of MCP servers that the mcp tools of a request can name, as host (port 443) or host:port, in addition "
        "to the servers in toolsim_mcp_config, which a request can name by label. The word config allows only "
        "labels. This option also applies to mcp_servers in the Messages API, which are refused if their host is not "
        "listed. Empty: mcp tools are treated like any other hosted tool (see toolsim_forward_hosted_tools).",
    ),
    Option(
        "mcp_approval",
        "client",
        "Approver of MCP tool calls that need approval. client: the client, with an mcp_approval_request in the "
        "Responses API; chat completions have no equivalent, so calls that need approval are refused. operator: the "
        "operator; the answer waits for the command toolsim.approve or toolsim.refuse, in any API.",
        ("client", "operator"),
    ),
)


def register(loader: Loader | OptManager, environment: Mapping[str, str]) -> list[str]:
    """Register all options, using the predecessor's environment variables as defaults.

    Return a warning for each invalid variable.
    """
    defaults, warnings = from_environment(environment)
    for option in OPTIONS:
        default = defaults.get(option.name, option.default)
        loader.add_option(option.full_name, option.typespec, default, option.help, option.choices or None)
    return warnings
