"""Tests for the container and service files: the command accepts their command lines, and validators find no errors.

``test_image.py`` builds the container.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML
from support.mitmdump import ROOT
from toolsim.cli.main import parser
from toolsim.proxy.drain import ANNOUNCE_SECONDS, END_SECONDS
from toolsim.proxy.options.table import OPTIONS
from toolsim.proxy.reporting.metrics import Metrics

DEPLOY = ROOT / "addon" / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
UNIT = (DEPLOY / "toolsim.service").read_text()


@pytest.fixture(scope="module")
def compose() -> Any:
    return YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())


def test_deployed_command_lines_are_accepted(compose: Any) -> None:
    """``toolsim`` accepts the deployed command lines: a container listens on all addresses, a service on localhost."""
    words = json.loads(re.findall(r"^CMD (.*)$", CONTAINERFILE, re.MULTILINE)[0])
    service = shlex.split(re.findall(r"^ExecStart=\S+/toolsim (.*)$", UNIT, re.MULTILINE)[0])
    hosts = [parser().parse_args(line).host for line in (words, compose["services"]["toolsim"]["command"], service)]
    assert hosts == ["0.0.0.0", "0.0.0.0", "127.0.0.1"]


def test_published_ports_are_bound_to_localhost(compose: Any) -> None:
    """Each published port is bound to 127.0.0.1."""
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_copied_files_exist(compose: Any) -> None:
    """Each file that the image copies exists and is part of the build. In the compose file, services address each other
    by their names.
    """
    copied = re.findall(r"^COPY (.*) \S+$", CONTAINERFILE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in kept
    build = compose["services"]["toolsim"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert compose["services"]["toolsim"]["command"][1] == "http://ollama:11434/v1"
    assert compose["services"]["toolsim"]["hostname"] == "toolsim"
    assert 'targets: ["toolsim:8080"]' in (DEPLOY / "prometheus.yml").read_text()
    assert {"ollama", "prometheus"} < compose["services"].keys()


def test_proxies_with_a_shared_store() -> None:
    """With a shared store, the proxies' command lines and the load balancer's configuration are valid."""
    services = YAML(typ="safe").load((DEPLOY / "shared.yaml").read_text())["services"]
    for name in "one", "two":
        words = services[name]["command"]
        assert parser().parse_args([words[0], "http://backend:8000/v1", *words[2:]]).host == "0.0.0.0"
        assert f"server {name} {name}:8080" in (DEPLOY / "haproxy.cfg").read_text()
    assert "uri /toolsim/ready " in (DEPLOY / "haproxy.cfg").read_text()
    assert services["balancer"]["ports"] == ["127.0.0.1:8080:8080"]
    if shutil.which("haproxy") is None:
        pytest.skip("needs haproxy")
    command = ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_kubernetes_manifests_are_valid() -> None:
    """The Kubernetes manifests match the Kubernetes API's schemas, ``toolsim`` accepts their command line, and pods
    have time to drain.
    """
    documents = list(YAML(typ="safe").load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.34", strict=True)
    by_kind = {document["kind"]: document for document in documents}
    assert by_kind.keys() == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    pod = by_kind["Deployment"]["spec"]["template"]
    for document in documents:
        spec = document["spec"]
        selector = spec.get("selector", {})
        if "scaleTargetRef" not in spec:
            assert selector.get("matchLabels", selector) == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    parsed = parser().parse_args(container["args"])
    assert (parsed.host, parsed.backend) == ("0.0.0.0", "http://backend:8000/v1")
    names = {name.partition("=")[0] for name in parsed.set}
    assert names - {f"toolsim_{option.name}" for option in OPTIONS} == {"confdir"}
    drain = next(int(str(option.default)) for option in OPTIONS if option.name == "drain_timeout")
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain + ANNOUNCE_SECONDS + END_SECONDS
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < ANNOUNCE_SECONDS
    [metric] = by_kind["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in Metrics().text(0)


def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    """``systemd-analyze`` accepts the systemd unit."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "toolsim.service"
    # systemd-analyze requires that the unit's program exists.
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT, flags=re.MULTILINE))
    run = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def seconds(value: str) -> int:
    """Return the number of seconds in a value such as 35s."""
    return int(value.removesuffix("s"))


def test_deployments_wait_for_the_drain(compose: Any) -> None:
    """Each deployment waits longer than the drain timeout before it kills toolsim, and its health check works without a
    key.
    """
    shared = YAML(typ="safe").load((DEPLOY / "shared.yaml").read_text())["services"]
    services = [compose["services"]["toolsim"], shared["one"], shared["two"]]
    drain = next(int(str(option.default)) for option in OPTIONS if option.name == "drain_timeout")
    graces = [seconds(service["stop_grace_period"]) for service in services]
    graces.append(int(re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[0]))
    assert min(graces) > drain + ANNOUNCE_SECONDS + END_SECONDS
    for service in services:
        assert "'http://127.0.0.1:8080/toolsim/health'" in service["healthcheck"]["test"][-1]
    # systemd must signal only the main process, because workers and MCP servers are needed until all answers are
    # finished.
    assert "\nKillMode=mixed\n" in UNIT


ALERTS = """
rule_files: [ALERTS]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="toolsim", instance="a"}', values: '0x20'}
      - {series: 'toolsim_exchanges_total{instance="a", outcome="ok"}', values: '0+1x20'}
      - {series: 'toolsim_exchanges_total{instance="a", outcome="failed"}', values: '0+9x20'}
      - {series: 'toolsim_errors_total{instance="a", code="backend_unavailable"}', values: '0+9x20'}
      - {series: 'toolsim_first_byte_seconds_bucket{instance="a", le="10"}', values: '0+1x20'}
      - {series: 'toolsim_first_byte_seconds_bucket{instance="a", le="30"}', values: '0+9x20'}
      - {series: 'toolsim_first_byte_seconds_bucket{instance="a", le="+Inf"}', values: '0+9x20'}
      - {series: 'toolsim_store_errors_total{instance="a", what="read"}', values: '0+1x20'}
      - {series: 'toolsim_draining{instance="a"}', values: '1x20'}
      - {series: 'up{job="toolsim", instance="b"}', values: '1x20'}
      - {series: 'toolsim_exchanges_total{instance="b", outcome="ok"}', values: '0+100x20'}
      - {series: 'toolsim_exchanges_total{instance="b", outcome="failed"}', values: '0+1x20'}
      - {series: 'toolsim_errors_total{instance="b", code="backend_unavailable"}', values: '0+1x20'}
      - {series: 'toolsim_first_byte_seconds_bucket{instance="b", le="10"}', values: '0+9x20'}
      - {series: 'toolsim_first_byte_seconds_bucket{instance="b", le="+Inf"}', values: '0+9x20'}
      - {series: 'toolsim_store_errors_total{instance="b", what="read"}', values: '3x20'}
      - {series: 'toolsim_draining{instance="b"}', values: '0x20'}
    promql_expr_test:
      - {expr: 'count(ALERTS{alertstate="firing", instance="b"})', eval_time: 15m}
      - expr: 'count by (alertname) (ALERTS{alertstate="firing", instance="a"})'
        eval_time: 15m
        exp_samples: [SAMPLES]
"""


def test_alerts_fire(tmp_path: Path) -> None:
    """All alerts fire for a proxy that has every problem, and none fires for a healthy proxy."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    rules = DEPLOY / "alerts.yml"
    names = re.findall(r"- alert: (\w+)", rules.read_text())
    samples = ", ".join(f"""{{labels: '{{alertname="{name}"}}', value: 1}}""" for name in names)
    file = tmp_path / "test.yml"
    file.write_text(ALERTS.replace("[ALERTS]", json.dumps([str(rules)])).replace("SAMPLES", samples))
    run = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_configuration_is_valid() -> None:
    """Prometheus's own tool accepts the configuration and the alerts."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool")
    command = ["promtool", "check", "config", str(DEPLOY / "prometheus.yml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
