"""Tests for enabling traces with OpenTelemetry's standard environment variables."""

from __future__ import annotations

import pytest
from toolsim.otel import start

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_TRACES_SAMPLER": "always_on"}, ""),
        ({ENDPOINT: "http://c:4318"}, ENDPOINT),
        ({ENDPOINT: " "}, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "None", ENDPOINT: "http://c:4318"}, ""),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp", ENDPOINT: "http://c:4318"}, ""),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
    ],
)
def test_tracing_is_enabled_by_variables(environment: dict[str, str], asked: str) -> None:
    assert start.asked_by(environment) == asked


def test_missing_package_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If the OpenTelemetry package is missing, one log line names the environment variable and gives the install
    command. The proxy runs without traces.
    """

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(start, "find_spec", missing)
    assert start.addons({ENDPOINT: "http://c:4318"}) == []
    [record] = caplog.records
    assert ENDPOINT in record.getMessage()
    assert "-m pip install 'opentelemetry-sdk" in record.getMessage()
    caplog.clear()
    assert start.addons({}) == []
    assert not caplog.records
