from __future__ import annotations

from toolsimlib.report import Report
from toolsimlib.response.block_log import BlockLog


def test_a_block_starts_where_the_one_before_ended() -> None:
    """Each block is reported with its position in its choice's text, and its outcome; text in between counts too."""
    log = BlockLog(report := Report(), 1)
    log.position += 3
    log.add("<a>", ["call f"], ["CODE:f"])
    log.add("<b/>", ["text UNKNOWN_TOOL"], [])
    assert report.blocks == [
        {"choice": 1, "start": 3, "end": 6, "verdicts": ["call f"], "repairs": ["CODE:f"]},
        {"choice": 1, "start": 6, "end": 10, "verdicts": ["text UNKNOWN_TOOL"], "repairs": []},
    ]


def test_nobody_reads_more_than_a_thousand() -> None:
    """Further blocks advance the position, but are not reported."""
    log = BlockLog(report := Report(), 0)
    for _ in range(1001):
        log.add("x", [], [])
    assert (len(report.blocks), log.position) == (1000, 1001)
