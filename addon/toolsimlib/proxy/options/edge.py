"""The options of the edge: what is logged and recorded, who may come in, how much and how long, and where to listen."""

from __future__ import annotations

from toolsimlib.proxy.options.option import Option

EDGE_OPTIONS = (
    Option(
        "log",
        "text",
        "Form of the log. text: one line per turn, for people. json: every line one JSON object, for programs. off: "
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
        "the password of any name. Required before the codex backend is served to other machines.",
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
        "its own series, which is a lot if clients name many.",
    ),
    Option(
        "cors_origins",
        ("app://obsidian.md", "capacitor://localhost", "http://localhost:*", "http://127.0.0.1:*"),
        "Origins of web pages and Electron programs that may use the API. :* stands for any port or none, and * alone "
        "for any origin. Without toolsim_api_key all other pages are refused, and so are requests that name the "
        "listener by anything but an address, localhost, the machine's name, or the host of a page listed here.",
    ),
    Option(
        "max_body_bytes",
        32 * 1024 * 1024,
        "Size limit in bytes, decoded, of a request's body that has to be read, and of a backend's answer, whole or "
        "as a stream. A larger request is answered with 413; beyond it an answer fails.",
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
        "Seconds that SIGTERM and SIGINT (Ctrl-C) leave to answers that are under way; then they end with "
        "an error, and the proxy ends. A second signal ends it at once; 0 = so does the first.",
    ),
)
