from __future__ import annotations

import json

from toolsim.core.report import MAX_NAMES, Report, code_of, entry, tallies


def test_code_of_an_entry_is_extracted() -> None:
    """``code_of`` extracts the error code from an entry in a report, whether or not the entry contains a tool name."""
    assert code_of(entry("SCHEMA_MISMATCH", "ns__f:0")) == code_of(entry("SCHEMA_MISMATCH")) == "SCHEMA_MISMATCH"


def test_tallies() -> None:
    """Calls are tallied by tool name, and other entries in a report by code. Fields without entries have empty
    tallies.
    """
    report = Report(calls=["f", "g"], warnings=[entry("SCHEMA_MISMATCH", "f"), entry("SCHEMA_MISMATCH", "g")])
    data = {tally.title: tally.codes for tally in report.tallies()}
    assert data["calls"] == ["f", "g"]
    assert data["warnings"] == ["SCHEMA_MISMATCH"] * 2
    assert data["parse failures"] == data["strict failures"] == data["repairs"] == []


def test_foreign_report_does_not_raise() -> None:
    """A report that was read from a flow file can contain unexpected values. Tallying them does not raise an
    exception.
    """
    assert [tally.entries for tally in tallies({"calls": "f", "repairs": [1, None]})] == [
        (),
        (),
        (),
        ("1", "None"),
        (),
        (),
        (),
    ]


def test_dropped_call_makes_the_answer_incomplete() -> None:
    """If a call is dropped, the report marks the answer as truncated, even if the call's name is unknown."""
    report = Report()
    report.drop_call("f")
    report.drop_call()
    assert (report.dropped_calls, report.truncated) == (["OVER_LIMIT:f", "OVER_LIMIT"], True)


def test_stream_comment_has_the_compatibility_fields() -> None:
    """The comment in a stream always contains the compatibility fields: the number of calls, the truncation flag and
    the stop mode.
    """
    report = Report(client="chat", calls=["f"])
    fields = {"tool_call_count": 1, "tool_call_truncated": False, "stop_after_tools_mode": "off"}
    assert fields.items() <= report.for_clients().items()
    report.dropped_calls.append("SECOND_OPINION:g")
    assert report.for_clients()["tool_call_truncated"] is False
    report.drop_call("f")
    assert report.for_clients()["tool_call_truncated"] is True


def test_log_distinguishes_missing_calls_from_a_cut_answer() -> None:
    """In the log, ``truncated`` is true for any truncated answer, but ``tool_call_truncated`` is present only if calls
    are missing.
    """
    cut, dropped = Report(truncated=True), Report()
    dropped.drop_call("f")
    assert (cut.summary()["truncated"], "tool_call_truncated" in cut.summary()) == (True, False)
    assert (dropped.summary()["truncated"], dropped.summary()["tool_call_truncated"]) == (True, True)


def test_summary_is_short_plain_data() -> None:
    """The summary of a report can be encoded as JSON. It omits empty fields and the positions of blocks, and shortens
    long lists.
    """
    report = Report(client="chat", tools=[f"t{n}" for n in range(MAX_NAMES + 5)], blocks=[{"start": 0}])
    data = report.summary()
    assert data.keys() == {
        "client",
        "tools",
        "mode",
        "stop_after_tools_mode",
        "has_tool_calls",
        "tool_call_count",
    }
    assert data["has_tool_calls"] is False
    assert Report(calls=["f"]).summary()["has_tool_calls"] is True
    assert data["tools"][-1] == "and 5 more"
    json.dumps(data)


def test_plain_data_is_a_copy() -> None:
    """The data that a report returns is a copy, so changing it does not affect the report."""
    report = Report(calls=["f"], tokens={"input": 1}, blocks=[{"verdicts": ["call f"], "choice": 0}])
    for data in (report.as_dict(), report.summary()):
        data["calls"].append("g")
        data["tokens"]["input"] = 2
        for block in data.get("blocks", ()):
            block["verdicts"].clear()
    assert (report.calls, report.tokens, report.blocks[0]["verdicts"]) == (["f"], {"input": 1}, ["call f"])


def test_block_is_listed_with_its_findings() -> None:
    """The report lists each block with its position, its verdict, and only those repairs and warnings that occurred
    within it.
    """
    report = Report(repairs=["BEFORE"])
    with report.add_block(1, 3, 6) as outcomes:
        report.repairs.append("CODE:f")
        report.warnings.append("ODD")
        outcomes.append("call f")
    with report.add_block(1, 6, 10) as outcomes:
        outcomes.append("text UNKNOWN_TOOL")
    assert report.blocks == [
        {"choice": 1, "start": 3, "end": 6, "verdicts": ["call f"], "repairs": ["CODE:f"], "warnings": ["ODD"]},
        {"choice": 1, "start": 6, "end": 10, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []},
    ]


def test_listed_blocks_are_limited() -> None:
    """A report lists at most 1,000 blocks."""
    report = Report()
    for at in range(1001):
        with report.add_block(0, at, at + 1):
            pass
    assert (len(report.blocks), report.blocks[-1]["end"]) == (1000, 1000)
