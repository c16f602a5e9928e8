"""The options of the store."""

from __future__ import annotations

from toolsimlib.proxy.options.option import Option

MEMORY_OPTIONS = (
    Option(
        "store",
        "",
        "Where finished answers of the Responses API are kept, so that later requests can refer to them. Empty: "
        "nowhere. memory: in this process. sqlite:PATH: in a file of this machine, made if it is not there. "
        "redis://HOST:PORT (or rediss://, unix://): in a Redis server, which several proxies may share. An answer is "
        "kept unless its request says store: false; each client key reads only its own.",
    ),
    Option(
        "store_max_answers",
        100_000,
        "Answers and conversations that are kept at most. The longest unused go first.",
        minimum=1,
    ),
    Option(
        "store_max_bytes",
        256 * 1024 * 1024,
        "Bytes of answers and conversations that are kept at most. The longest unused go first; a file may take up "
        "more for its own order.",
        minimum=1024,
    ),
    Option(
        "store_max_days",
        30,
        "Days after its last use for which an answer or a conversation is kept.",
        minimum=1,
    ),
    Option(
        "background_max",
        16,
        "Answers that are made in the background (background: true, with toolsim_store) at one time; half of them for "
        "each client key while another key wants some too. One more is refused with HTTP 429.",
        minimum=1,
    ),
    Option(
        "background_event_bytes",
        4 * 1024 * 1024,
        "Bytes of the events of one such answer, asked for with stream, that are kept so that a client can go on where "
        "it lost its stream. The first ones go where there are more.",
        minimum=1024,
    ),
)
