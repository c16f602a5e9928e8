"""Example runs for the tests of reports."""

from __future__ import annotations

from toolsim.eval.case import Cell, Label, MethodName, Run


def run(
    case: str = "happy_path",
    *,
    ok: bool = True,
    label: Label | None = None,
    method: MethodName = "toolsim",
    setting: str = "",
    suite: str = "scenarios",
    trial: int = 0,
    ms: float = 100.0,
    model: str = "qwen",
    detail: str = "",
) -> Run:
    """Return an example run. If it has failed and no label is given, its label is ``no_call``."""
    cell = Cell(model, "default", method, "chat", False, setting)
    label = None if ok else label or "no_call"
    kind = "chat" if case == "chat_only" else "tools"
    step = {
        "messages_before": 0,
        "messages": [{"role": "user", "content": "Do <it>."}],
        "answer": {"text": "I will.", "calls": [{"id": "1", "name": "state_get", "arguments": "{}"}], "finish": "stop"},
        "shown": [["system", "# CLIENT TOOL CATALOG"], ["user", "Do <it>."]],
        "shown_before": 0,
        "wrote": "<tool_call>{}</tool_call>",
        "tools": ["state_get"],
        "ms": ms,
    }
    return Run(suite, case, kind, trial, cell, ok, label, detail, ms, 2, 10, 5, 1, 2, steps=(step,))


RUNS = [
    run(),
    run(trial=1, ok=False, ms=300),
    run("chat_only", ms=50),
    run(method="native", ok=False, label="http_error", ms=9),
    run("chat_only", method="native", ms=40),
    run("multiple_7", suite="bfcl:multiple", ok=False, label="wrong_value", detail="city | is 'Bonn'"),
    run("multiple_9", suite="bfcl:multiple", setting="toolsim_repair=off"),
]
