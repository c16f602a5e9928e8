"""Checks whether traces are enabled, and imports OpenTelemetry only in that case."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from toolsim.installation import command_for_extra

logger = logging.getLogger(__name__)

MISSING = "toolsim: the environment variable %s enables traces, which require the extra [otel]: %s"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def asked_by(environment: Mapping[str, str]) -> str:
    """Return the name of the environment variable that enables traces, or "" if traces are not enabled."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporters:
        return "" if exporters == "none" else "OTEL_TRACES_EXPORTER"
    return next((name for name in _ENDPOINTS if environment.get(name, "").strip()), "")


def addons(environment: Mapping[str, str]) -> list[object]:
    """Return a list with the tracing addon, which has to be loaded after ``ToolSim``.

    The list is empty if traces are disabled or a package is missing.
    """
    asked = asked_by(environment)
    if not asked:
        return []
    try:
        is_installed = find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        logger.warning(MISSING, asked, command_for_extra("otel"))
        return []
    from toolsim.otel.export import Export
    from toolsim.otel.tracing import Tracing

    export = Export.from_environment(environment)
    return [Tracing(export)] if export is not None else []
