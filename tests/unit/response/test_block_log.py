from __future__ import annotations

from toolsimlib.report import Report
from toolsimlib.response.block_log import BlockLog


def test_a_block_stands_where_the_one_before_ended() -> None:
    """Each block is told with its place in its choice's text and what became of it; text between them moves on."""
    log = BlockLog(report := Report(), 1)
    log.position += 3
    log.add("<a>", ["call f"], ["CODE:f"])
    log.add("<b/>", ["text UNKNOWN_TOOL"], [])
    assert report.blocks == [
        {"choice": 1, "start": 3, "end": 6, "verdicts": ["call f"], "repairs": ["CODE:f"]},
        {"choice": 1, "start": 6, "end": 10, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []},
    ]


def test_nobody_reads_more_than_a_thousand() -> None:
    """Beyond that blocks move the position, and are told of no more."""
    log = BlockLog(report := Report(), 0)
    for _ in range(1001):
        log.add("x", [], [])
    assert (len(report.blocks), log.position) == (1000, 1001)
