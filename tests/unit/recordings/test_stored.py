"""Tests for reading recordings from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recording import context, recording
from toolsim.recordings.capture import dump
from toolsim.recordings.stored import flow_files, recorded


def test_recording_has_exactly_two_sides(tmp_path: Path) -> None:
    """A file with only one side, or with the sides in the wrong order, is not a recording."""
    with context():
        path = recording(tmp_path)
    backend, client = recorded(path)
    for flows in ([backend], [client, backend], []):
        path.write_bytes(dump(flows))
        with pytest.raises(ValueError, match="expected one flow for the backend"):
            recorded(path)


def test_folders_are_expanded(tmp_path: Path) -> None:
    """A folder is expanded to its .flow files in alphabetical order. A file is kept, even if it has another
    extension.
    """
    for name in ("b.flow", "a.flow", "other.txt"):
        (tmp_path / name).touch()
    other = tmp_path / "other.txt"
    assert flow_files([tmp_path, other]) == [tmp_path / "a.flow", tmp_path / "b.flow", other]
