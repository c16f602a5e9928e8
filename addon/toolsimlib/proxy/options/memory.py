"""The options of the store."""

from __future__ import annotations

from toolsimlib.proxy.options.option import Option

MEMORY_OPTIONS = (
    Option(
        "store",
        "",
        "Where finished answers of the Responses API are stored, so that later requests can refer to them. Empty: "
        "nowhere. memory: in this process. sqlite:PATH: in a file on this machine, created if missing. "
        "redis://HOST:PORT (or rediss://, unix://): in a Redis server, which several proxies may share. An answer is "
        "stored unless its request says store: false; each client key reads only its own.",
    ),
    Option(
        "store_max_answers",
        100_000,
        "Largest number of stored answers and conversations. The longest unused go first.",
        minimum=1,
    ),
    Option(
        "store_max_bytes",
        256 * 1024 * 1024,
        "Largest total size in bytes of stored answers and conversations. The longest unused go first; a file may "
        "take up more for its own bookkeeping.",
        minimum=1024,
    ),
    Option(
        "store_max_days",
        30,
        "Days after its last use for which an answer or a conversation is stored.",
        minimum=1,
    ),
    Option(
        "background_max",
        16,
        "Largest number of answers made in the background at one time (background: true, with toolsim_store); half "
        "of them for each client key while another key wants some too. One more is refused with HTTP 429.",
        minimum=1,
    ),
    Option(
        "background_event_bytes",
        4 * 1024 * 1024,
        "Bytes of the events of one background answer, requested with stream, that are stored so that a client can "
        "continue where it lost its stream. Beyond it the first ones go.",
        minimum=1024,
    ),
)
