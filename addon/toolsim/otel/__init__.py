"""Represents the proxy's work as OpenTelemetry spans that follow the semantic conventions for HTTP, generative AI and
MCP.

    POST /v1/responses           SERVER     a client's turn
    ├─ chat qwen2.5              CLIENT     a request to the model; each retry has a separate span
    ├─ execute_tool read_file    INTERNAL   a call to an MCP tool, run by the proxy
    └─ chat qwen2.5              CLIENT     (INTERNAL if the backend is built in)

    start         checks whether traces are enabled, and returns the addon if they are
    tracing       the addon: attaches ``Spans`` to each exchange of the core
    spans         a feature of one exchange, which starts and ends its spans
    conventions   names of the conventions, and their values for a report
    export        runs the exporters that the environment names, in a separate thread
    content       prompts and answers, if enabled: parsed and redacted in the exporter's thread

1. *No option.* OpenTelemetry's standard environment variables enable traces (``OTEL_TRACES_EXPORTER``,
   ``OTEL_EXPORTER_OTLP_ENDPOINT``, …). If they are not set, no OpenTelemetry package is imported.
2. *No content, no keys.* Spans contain only names, counts and codes, like the log.
   ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` adds messages, arguments and results, redacted like a
   recording.
3. *Traces continue.* The spans continue the trace in the client's ``traceparent`` and ``tracestate`` headers. Each
   request to a backend carries the context of its own span, as does each MCP tool call (in ``_meta`` and in headers).
   The same headers connect the spans within this process, because each round copies the headers of the client's
   request.
4. *No waiting.* On the event loop, spans are only started and ended. Any longer work happens in the exporter's thread,
   which has a few seconds to finish when the proxy exits.
"""
