"""The results of replaying recorded exchanges, and their conversion to JUnit XML, which CI systems display."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from toolsim.recordings.compare import Difference

MAX_SHOWN = 20
# Matches characters that must not occur in XML 1.0.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of replaying one file."""

    path: Path
    differences: tuple[Difference, ...] = ()
    note: str = ""
    """The parts that could not be compared, or ""."""
    problem: str = ""
    """The reason why the file could not be replayed, or ""."""

    @property
    def same(self) -> bool:
        """Whether the file was replayed and the output equals the recorded output."""
        return not self.differences and not self.problem

    def __str__(self) -> str:
        if self.problem:
            return f"{self.path}: {self.problem}"
        count = len(self.differences)
        lines = [f"{self.path}: {f'{count} difference{"s" * (count > 1)}' if count else 'same'}"]
        lines[0] += f" ({self.note})" if self.note else ""
        lines += [f"  {difference}" for difference in self.differences[:MAX_SHOWN]]
        lines += [f"  and {count - MAX_SHOWN} more"] if count > MAX_SHOWN else []
        return "\n".join(lines)


def junit(results: Sequence[tuple[Result, float]]) -> bytes:
    """Return a report with one test case per file, for the results and their durations in seconds."""
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
