"""OpenTelemetry: what the proxy does, as spans, by the semantic conventions for HTTP, generative AI and MCP.

    POST /v1/responses                 SERVER    a client's turn
    ├─ chat qwen2.5                    CLIENT    one request to the model; each retry is one more
    ├─ execute_tool read_file          INTERNAL  one call of an MCP tool, run by the proxy
    └─ chat qwen2.5                    CLIENT

    start         whether anybody asked for traces; the addon, if so
    tracing       the addon: attaches ``Spans`` to each exchange of the core
    spans         one exchange, as a feature of the core: when its spans begin and end
    conventions   names and values: what a report says, in the words of the conventions
    export        the SDK: exporters as the environment names them, in a thread of their own
    content       prompts and answers, if they are asked for: read and redacted in that thread

1. *Nobody's option.* The standard variables decide (``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``, …). If
   they ask for nothing, nothing is imported.
2. *No content, no keys.* Names, counts and codes only, as in the log. ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_
   CONTENT`` adds messages, arguments and results, redacted like a recording.
3. *The trace goes on.* ``traceparent`` and ``tracestate`` of the client are continued. Each request to a backend has
   those of its own span, and so has each call of an MCP tool, in its ``_meta`` and as headers. Between the parts of
   this process the same headers connect the spans: a round is made of the client's request, headers included.
4. *Nothing waits for it.* A turn costs the event loop the start and the end of its spans. Whatever takes longer happens
   in the exporter's thread, which is given a few seconds at the end of the proxy.
"""
