"""Tests for recognizing secrets by the names of their fields. ``test_redact.py`` covers recognition by shape."""

from __future__ import annotations

import pytest
from toolsim.recordings.secret_rules import PATTERNS, is_secret_name, is_secret_parameter


@pytest.mark.parametrize("name", ["api_key", "apiKey", "X-API-Key", "Authorization", "accessToken", "db.password"])
def test_secret_names_are_recognized(name: str) -> None:
    """A name that indicates a secret is recognized in any spelling."""
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "keyboard", "tokens", "secretary", "city", "key"])
def test_harmless_names_are_not_recognized(name: str) -> None:
    """A name that only resembles the name of a secret, such as ``max_tokens``, is not recognized."""
    assert not is_secret_name(name)


def test_key_is_a_secret_name_only_in_a_url() -> None:
    """ "key" is the name of a secret in the query of a URL, but not in a JSON object."""
    for name in ("key", "sig", "X-Amz-Signature", "code"):
        assert is_secret_parameter(name)
        assert not is_secret_name(name)
    assert is_secret_parameter("api_key")


def test_every_pattern_marks_its_secret() -> None:
    """Each pattern for secrets has a unique name, and a group named ``secret`` that contains the text to be masked."""
    assert all("secret" in pattern.groupindex for _, pattern in PATTERNS)
    assert len({name for name, _ in PATTERNS}) == len(PATTERNS)
