"""Tests for the metrics, with Prometheus's own tools, and for the queries of the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy.conftest import CALL, WEATHER
from support.line import Line
from support.mitmdump import ROOT, Mitmdump
from support.ports import free_port
from support.text_backend import TextBackend, refuses, says
from toolsim.proxy.legacy import RENAMED_METRICS

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
DASHBOARD = ROOT / "addon" / "grafana" / "toolsim.json"
METRICS = "/toolsim/metrics"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROMETHEUS or not PROMTOOL, reason="needs prometheus and its promtool"),
]

BROKEN = '<tool_call>{"name":"gone","arguments":"{}"}</tool_call>'
COMMA = '<tool_call>{"name":"get_weather","arguments":{"city":"Bonn",}}</tool_call>'
BARE = '{"name":"get_weather","arguments":{"city":"Bonn"}}'
TURNS = (
    *(says(CALL), says(CALL, CALL), says("No need."), says(BROKEN), says(COMMA), says(BARE)),
    refuses(429, "Slow down."),
)


def talk(line: Line, backend: TextBackend, **headers: str) -> None:
    """Run one turn of each kind with both OpenAI APIs, with and without streaming."""
    for stream in (True, False):
        backend.play(TURNS)
        for _ in TURNS:
            messages = [{"role": "user", "content": "hi"}]
            body = {"messages": messages, "tools": [WEATHER], "stream": stream}
            line.post("/v1/chat/completions", body, **headers)
        backend.play(TURNS)
        tool = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
        for _ in TURNS:
            body = {"model": "m", "input": "hi", "tools": [tool], "stream": stream}
            line.post("/v1/responses", body, **headers)


def scrape(line: Line, **headers: str) -> str:
    return line.request("GET", METRICS, **headers).body.decode()


def problems(text: str) -> str:
    """Return the problems that ``promtool`` finds in the given metrics, or "" if there are none."""
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode in (0, 3), checked.stderr
    return checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def backend() -> Iterator[TextBackend]:
    with TextBackend() as backend:
        yield backend


@pytest.mark.ci
@pytest.mark.parametrize("labels", ["", "model,tool"])
def test_promtool_finds_no_problems(backend: TextBackend, labels: str) -> None:
    """``promtool`` finds no problems in the metrics, before and after many turns. Series have the optional labels
    only if they are enabled.
    """
    with Mitmdump(backend.url, toolsim_metrics_labels=labels) as proxy, Line(proxy.url) as line:
        before = scrape(line)
        assert problems(before) == ""
        talk(line, backend)
        after = scrape(line)
        assert problems(after) == ""
    assert ('tool="get_weather"' in after, 'model="m"' in after) == (bool(labels), bool(labels))
    if not labels:
        new = series(after) - series(before)
        # Metrics whose label values cannot be known in advance, such as the error codes of backends.
        assert {name.split("{")[0] for name in new} <= UNKNOWN, new


UNKNOWN = {"toolsim_repairs_total", "toolsim_untagged_total", "toolsim_errors_total"}


def series(text: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


class Prometheus:
    """A real Prometheus server that scrapes one target every second and sends the target's key."""

    def __init__(self, folder: Path, target: str, key: str) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        scraped = {
            "job_name": "toolsim",
            "metrics_path": METRICS,
            "static_configs": [{"targets": [target]}],
            "authorization": {"credentials": key},
        }
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scraped]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series in the result of an instant query."""
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            reply = json.load(answer)
        assert reply["status"] == "success", reply
        return list(reply["data"]["result"])

    def wait_for(self, expression: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:
                pass
            assert time.monotonic() < end, f"{expression} never had a value"
            time.sleep(0.2)


def queries() -> list[tuple[str, str]]:
    """Return the panel title and the expression of each query on the dashboard. Grafana's variables are replaced."""
    board = json.loads(DASHBOARD.read_text())
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$client", ".*"))
        for panel in board["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.ci
def test_no_dashboard_panel_is_empty(backend: TextBackend, tmp_path: Path) -> None:
    """After some turns, no panel of the dashboard is empty or shows NaN. Each metric is shown on a panel."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "mine.toml").write_text('models = ["m"]\n')
    keys = tmp_path / "keys"
    keys.write_text("alice key-of-alice\n")
    headers = {"Authorization": "Bearer key-of-alice"}
    # Enable all features that add metrics.
    options = {"toolsim_store": "memory", "toolsim_profiles": str(profiles), "toolsim_api_key": f"file:{keys}"}
    with Mitmdump(backend.url, **options) as proxy, Line(proxy.url) as line:
        prometheus = Prometheus(tmp_path, proxy.url.removeprefix("http://"), "key-of-alice")
        try:
            prometheus.wait_for("count_over_time(toolsim_exchanges_in_progress[1m]) >= 2")
            talk(line, backend, **headers)
            prometheus.wait_for("sum(toolsim_exchanges_total) == 28")
            # A rate can be computed only after two scrapes. The series for a repair does not exist before the first
            # repair.
            talk(line, backend, **headers)
            prometheus.wait_for("sum(toolsim_exchanges_total) == 56")
            found = {(title, query): prometheus.query(query) for title, query in queries()}
            families = set(re.findall(r"^# TYPE (\w+) ", scrape(line, **headers), re.MULTILINE))
            errors = prometheus.query("sum by (code) (toolsim_errors_total) > 0")
        finally:
            prometheus.stop()
    assert len(found) > 15
    assert {"toolsim_user_exchanges_total", "toolsim_user_tokens_total"} < families
    former = {f"toolsim_{name}" for name in RENAMED_METRICS}
    assert {family for family in families - former if family not in DASHBOARD.read_text()} == set()
    assert {place for place, result in found.items() if not result} == set()
    values = {place: [sample["value"][1] for sample in result] for place, result in found.items()}
    assert {place for place, numbers in values.items() if "NaN" in numbers} == set()
    assert {sample["metric"]["code"]: sample["value"][1] for sample in errors} == {"http_429": "8"}


def test_dashboard_variables_and_panel_ids() -> None:
    """The queries use exactly the variables that the dashboard declares, and each panel has a unique ID."""
    board = json.loads(DASHBOARD.read_text())
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\}?", DASHBOARD.read_text()))
    assert used == declared
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
