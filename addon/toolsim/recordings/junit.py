"""The results of replays as JUnit XML, which CI systems display: one test case per file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from toolsim.recordings.result import Result

# Characters that XML 1.0 cannot represent.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: Sequence[tuple[Result, float]]) -> bytes:
    """Return the XML report of results, each given with its duration in seconds."""
    failures = sum(bool(result.differences) and not result.problem for result, _ in results)
    errors = sum(bool(result.problem) for result, _ in results)
    suite = ElementTree.Element(
        "testsuite",
        name="toolsim replay",
        tests=str(len(results)),
        failures=str(failures),
        errors=str(errors),
        skipped="0",
        time=f"{sum(seconds for _, seconds in results):.3f}",
    )
    for result, seconds in results:
        folder, name = str(result.path.parent), result.path.stem
        case = ElementTree.SubElement(suite, "testcase", classname=folder, name=name, time=f"{seconds:.3f}")
        if result.problem:
            ElementTree.SubElement(case, "error", message=_written(result.problem)).text = _written(str(result))
        elif result.differences:
            first = _written(str(result.differences[0]))
            ElementTree.SubElement(case, "failure", message=first).text = _written(str(result))
        elif result.note:
            ElementTree.SubElement(case, "system-out").text = _written(result.note)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def _written(text: str) -> str:
    return _UNWRITABLE.sub("�", text)
