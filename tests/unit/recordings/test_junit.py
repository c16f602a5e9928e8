"""Tests for exporting replay results as JUnit XML. A separate parser verifies the XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from toolsim.recordings.compare import Difference
from toolsim.recordings.result import Result, junit


def test_each_file_is_a_case() -> None:
    """In JUnit XML, a recording with differences is a failure, and an invalid recording is an error. Notes are written
    to the output.
    """
    differing = Result(Path("a/two.flow"), (Difference("x[0]", "\0<&", 1), Difference("y", 1, 2)))
    results = [
        (Result(Path("a/one.flow")), 0.25),
        (differing, 0.5),
        (Result(Path("a/three.flow"), problem="no such file"), 0.0),
        (Result(Path("a/four.flow"), note="only the request is compared"), 0.0),
    ]
    root = ElementTree.fromstring(junit(results))
    assert root.tag == "testsuites"
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("time")) == (
        "4",
        "1",
        "1",
        "0.750",
    )
    one, two, three, four = suite
    assert (one.get("classname"), one.get("name"), one.get("time"), len(one)) == ("a", "one", "0.250", 0)
    (failure,) = two
    assert failure.tag == "failure"
    assert (failure.get("message") or "").startswith("x[0]: got ")
    assert "y: got 1, expected 2" in (failure.text or "")
    assert [(element.tag, element.get("message")) for element in three] == [("error", "no such file")]
    assert [(element.tag, element.text) for element in four] == [("system-out", "only the request is compared")]


def test_characters_invalid_in_xml_are_replaced() -> None:
    """Control characters and lone surrogates are replaced, because they are not allowed in XML."""
    result = Result(Path("a.flow"), problem="\x1b[31m \ud800 \ufffe ok")
    assert b"ok" in junit([(result, 0.0)])
    ElementTree.fromstring(junit([(result, 0.0)]))
