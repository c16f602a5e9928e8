"""All options, and their registration with mitmproxy. ``settings.py`` parses their values.

``core/policy.py`` declares the options that have the same values as a field of the policy, and the table in this module
contains all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import get_args, get_type_hints

from mitmproxy.addonmanager import Loader
from mitmproxy.optmanager import OptManager

from toolsim.core.policy import ApiName, Policy
from toolsim.plugins import BUILTIN
from toolsim.proxy.legacy import from_environment
from toolsim.proxy.options.option import Option
from toolsim.request.forms import FORMS

_TABLE = (
    Option(
        "backend",
        "auto",
        "Backend that answers requests. auto: an upstream server. toolsim first tries the client's own API, and then "
        "chat completions, Responses and Messages, until the server accepts a path. "
        f"{', '.join(get_args(ApiName))}: an upstream server; toolsim uses only this API. {', '.join(BUILTIN)}: a "
        "built-in backend, which answers requests addressed to the listener itself. "
        f"{'; '.join(f'{name} {each.help}' for name, each in BUILTIN.items())}.",
        ("auto", *get_args(ApiName), *BUILTIN),
    ),
    Option("model", "", "Model file (GGUF) that toolsim_backend=local runs; requires the extra [local]."),
    Option(
        "upstream",
        "",
        "Backend URL for clients whose base URL cannot be changed. toolsim redirects API requests from their original"
        " host to this backend. A path in the URL replaces the part of the request path before the endpoint, such as "
        "/responses, /chat/completions or /models. All other requests are forwarded to their original host. With a "
        "built-in backend or toolsim_models, toolsim forwards requests to other hosts only if this option is set.",
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
        "The backend's server software. Other options that are set to auto depend on this option. auto: toolsim "
        "detects the software once, by requesting pages that only one kind of server has. The first request waits "
        "at most one second for the result. unknown: toolsim does not detect the software and assumes no special "
        "features.",
        ("auto", "unknown", "llama.cpp", "vllm", "sglang", "ollama", "lmstudio"),
    ),
    Option(
        "profiles",
        "auto",
        "Profiles, which contain settings for individual models. toolsim tune writes profiles. If several profiles "
        "match the requested model, the profile with the most specific pattern applies. Options that you set "
        "explicitly take precedence over profiles. auto: profiles in the user's folder (~/.config/toolsim/profiles), "
        "then the profiles included with toolsim. off: no profiles. strict-tags: a built-in profile for all models "
        "that disables all heuristics. It sets toolsim_untagged=off, toolsim_history=bracketed, "
        "toolsim_manifest=schemas, toolsim_repair=off and toolsim_second_opinion=off. Any other value is the path of "
        "a folder with profiles.",
    ),
    Option(
        "manifest",
        "auto",
        "Form in which the prompt shows the tools to the model. auto: the form that works best with real models, "
        "currently calls. calls: each tool as a call with slots for its values. lines: like calls, but if several "
        "calls are needed, the prompt requests one call per line instead of a list. schemas: each tool's JSON schema."
        " hermes: the declarations that Hermes and Qwen models were trained on. typescript: TypeScript function "
        "declarations, which require the fewest tokens.",
        ("auto", *FORMS),
    ),
    Option(
        "sentinel",
        "auto",
        "Name of the tag that opens a call in the model's text. auto: usually tool_call. For qwen3 and glm-4.7 models"
        " on Ollama, toolsim uses call_tool, because Ollama tries to parse their tool_call tags, but fails. Choose a "
        "unique name if your conversations contain text about tool calls.",
    ),
    Option(
        "constrain",
        "auto",
        "Constraint that the backend enforces during sampling. auto: a constraint that a recognized engine supports, "
        "until the engine rejects it. If the answer must be a call, toolsim uses json_schema. Otherwise, for strict "
        "tools, it uses gbnf with llama.cpp, and structural_tag with vLLM and SGLang. off: no constraint; only the "
        "prompt requests calls. json_schema: an answer that must be a call (tool_choice required, or a named "
        "function) is a JSON object that conforms to the tools' schemas. llama.cpp, vLLM, SGLang, Ollama, LM Studio "
        "and most hosted APIs support this constraint. With llama.cpp, vLLM, SGLang and Ollama, the answer can also "
        "be a list of objects for several calls. gbnf: every tagged call conforms to its tool's schema. Other text is"
        " unconstrained unless the answer must be a call. Only llama.cpp supports this constraint. structural_tag: "
        "like gbnf, but for vLLM and SGLang.",
        ("auto", "off", "json_schema", "gbnf", "structural_tag"),
    ),
    Option(
        "untagged",
        "on",
        "Whether toolsim recognizes calls that the model writes without the tag. toolsim recognizes calls between "
        "markers that models were trained on, anywhere in an answer. Calls without markers count only at the start or "
        "the end of an answer. Examples are name(…) and the JSON of a call, alone or in a code fence. If a call also "
        "occurs in a tool output of the same request, toolsim treats the call as a quotation, tagged or untagged, and "
        "it stays text (except with the value all). on: an untagged call counts if the request offers its tool; a "
        "call without markers must also match the tool's schema. off: untagged calls stay text, except for <use_tool> "
        "blocks. no_use_tool: like off, but <use_tool> blocks also stay text. all: like on, but calls that the model "
        "quotes from tool outputs also count. Use this value if your tools specify the next call in their outputs.",
        ("on", "off", "no_use_tool", "all"),
    ),
    Option(
        "tool_use_mode",
        "",
        "Override for the client's tool_choice. enforced: an answer must call one of the offered tools, unless it "
        "follows a tool output. relaxed: the client's tool_choice applies. If the backend returns an error, toolsim "
        "repeats the request without tools. disabled: toolsim offers the model no tools. Empty: the client's "
        "tool_choice applies.",
        ("", "enforced", "relaxed", "disabled"),
    ),
    Option(
        "transforms",
        (),
        "Names of changes that adapt requests to certain backends, or of presets that combine several changes "
        "(openai_compatible_reliability, content_tag_tool_call_fallback, deepseek_openrouter_compat, "
        "gemini_openrouter_compat). Changes to messages require toolsim_mode=native.",
    ),
    Option(
        "max_rounds",
        8,
        "Maximum number of rounds (requests to the backend) in one answer. At the limit, toolsim returns the last "
        "round's answer without another retry.",
        minimum=1,
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
        "How to handle text after a call. auto: on for chat completions and Messages, whose clients do not expect text "
        "after a call, and off for the Responses API. on: the text ends the turn and stops the backend, but calls "
        "that directly follow one another all count. first: the first call ends the turn. drop: the text is dropped, "
        "and the backend continues. off: the client receives the text.",
        ("auto", "on", "first", "drop", "off"),
    ),
    Option(
        "tool_allowlist",
        (),
        "Names of the tools that the model can see and call; empty = all tools. To exclude a tool, put ! before its "
        "name. Identify hosted tools, which a backend would run, by their type (web_search), and mcp tools by their "
        "type or their server's label.",
    ),
    # -- the proxy: logging and recording, access, limits --
    Option(
        "log",
        "text",
        "Format of the log. text: one human-readable line per turn. json: one JSON object per line. off: the log "
        "contains only mitmproxy's own messages.",
        ("text", "json", "off"),
    ),
    Option(
        "api_key",
        "",
        "Key that clients must send as a Bearer token or in the API's own key header; toolsim does not forward it. "
        "toolsim rejects requests without the key on every path except health checks. Clients that use the listener "
        "as a forward proxy send the key in Proxy-Authorization, as a Bearer token or as a password with any user "
        "name. The key is required to serve the codex backend to other machines. To give each user a separate key, "
        "set file:PATH. The file contains one line per user, in the form NAME KEY or NAME sha256:HEX.",
    ),
    Option(
        "upstream_key",
        "",
        "Key that toolsim sends to the backend as the Bearer token, instead of the client's key. Empty: toolsim sends"
        " the client's key, unless this key is the value of toolsim_api_key.",
    ),
    Option("codex_command", "codex app-server", "Command that starts the Codex app-server."),
    Option(
        "capture",
        "",
        "Folder in which toolsim records each finished exchange as a .flow file, without secrets; empty = no "
        "recording.",
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
        "port or none; * alone matches any origin. Without toolsim_api_key, toolsim rejects requests from all other "
        "pages. It then also requires that the Host header of a request is an IP address, localhost, the machine's "
        "name, or the host of a listed origin.",
    ),
    Option(
        "max_body_bytes",
        32 * 1024 * 1024,
        "Maximum size, in bytes, of a request body that toolsim parses, and of a backend's answer, streamed or "
        "non-streamed. Sizes are measured after decompression. toolsim rejects a larger request with a 413; a larger "
        "answer fails.",
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
        "time, they end with an error, and the proxy exits. On a second signal, or on the first signal if the value "
        "is 0, the proxy exits immediately.",
    ),
    # -- storage, and MCP servers --
    Option(
        "store",
        "",
        "Store for finished answers from the Responses API, so that later requests can refer to them. Empty: no store. "
        "memory: the memory of this process. sqlite:PATH: a file on this machine, created if missing. "
        "redis://HOST:PORT (or rediss://, unix://): a Redis server, which several proxies can share. toolsim stores "
        "an answer unless its request sets store to false. Clients can read only answers that were stored with the "
        "same key. Add limits after a question mark, as in "
        "memory?answers=100000&bytes=268435456&days=30&background=16. answers limits the number of answers and "
        "conversations, and bytes limits their total size; the least recently used items are deleted first. days is "
        "the number of days after which an unused item is deleted. background limits the number of simultaneous "
        "background answers. While another key is waiting, one client key can use at most half of this number. With "
        "required=1, /toolsim/ready returns 503 while the store is failing.",
    ),
    Option(
        "mcp_config",
        "",
        "JSON file that lists MCP servers. toolsim adds the tools of these servers to every request, with any "
        "backend. The file contains an mcpServers object, as for other MCP clients. Each server can have four "
        "additional keys: require_approval (always by default), allowed_tools, timeout (in seconds, for startup and "
        "for each call; 30 by default), and web_search (the tool that runs web searches for requests). Empty = no "
        "servers.",
    ),
    Option(
        "mcp_hosts",
        (),
        "Hosts of the MCP servers that clients can specify in mcp tools, as host (port 443) or host:port. Clients can"
        " also refer to the servers in toolsim_mcp_config by label. Set this option to config to allow only labels. "
        "This option also applies to mcp_servers in the Messages API: toolsim rejects servers whose host is not "
        "listed. Empty: toolsim treats mcp tools like any other hosted tool (see toolsim_forward_hosted_tools).",
    ),
    Option(
        "mcp_approval",
        "client",
        "Who approves MCP tool calls that need approval. client: the client, which receives an mcp_approval_request in"
        " the Responses API. The other APIs have no equivalent, so toolsim refuses calls that need approval. "
        "operator: you, the operator. In every API, the answer waits until you run the command toolsim.approve or "
        "toolsim.refuse.",
        ("client", "operator"),
    ),
)


def _policy_options() -> Iterator[Option]:
    """Yield the options that fields of the policy declare."""
    policy, types = Policy(), get_type_hints(Policy)
    for each in fields(Policy):
        if each.metadata:
            yield Option(each.name, getattr(policy, each.name), choices=get_args(types[each.name]), **each.metadata)


OPTIONS = (*_TABLE, *_policy_options())


def register(loader: Loader | OptManager, environment: Mapping[str, str]) -> list[str]:
    """Register all options, using the predecessor's environment variables as defaults.

    Return a warning for each invalid variable.
    """
    defaults, warnings = from_environment(environment)
    for option in OPTIONS:
        default = defaults.get(option.name, option.default)
        loader.add_option(option.full_name, option.typespec, default, option.help, option.choices or None)
    return warnings
