"""The API key file: its lines, its errors, and reloading."""

from __future__ import annotations

import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest
from toolsim.proxy.options.api_keys import ApiKeys, User, owner_of_name, owner_of_token, read_users

DIGEST = sha256(b"key-of-bob").hexdigest()
FILE = f"""\
# NAME KEY
alice  key-of-alice#1  concurrent=4 per_minute=60   # on call
\tbob\tsha256:{DIGEST.upper()}\t

eve@example.com key-of-eve per_minute=1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "keys"
    written.write_text(FILE)
    written.chmod(0o600)
    return written


def user(name: str, key: str, concurrent: int = 0, per_minute: int = 0) -> User:
    return User(name, sha256(key.encode()).digest(), owner_of_name(name), concurrent, per_minute)


def test_key_file_lines_are_read(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys.of_file(file)
    assert keys.user("key-of-alice#1") == user("alice", "key-of-alice#1", 4, 60)
    assert keys.user("key-of-bob") == user("bob", "key-of-bob")
    assert keys.user("key-of-eve") == user("eve@example.com", "key-of-eve", per_minute=1)
    for wrong in ("", "key-of-alice", "KEY-OF-BOB", DIGEST, f"sha256:{DIGEST}", "alice", "key-of-b\udce9b"):
        assert keys.user(wrong) is None
    assert not caplog.messages


def test_line_endings_and_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + FILE.replace("\n", "\r\n").encode())
    assert [each.name for each in read_users(file).values()] == ["alice", "bob", "eve@example.com"]


def test_owners_of_names_and_tokens_differ() -> None:
    assert owner_of_name("alice") not in (owner_of_token("alice"), owner_of_token(""), owner_of_token("user alice"))


MISTAKES = {
    "": "{file}: contains no keys, expected lines",
    "# nothing\n": "{file}: contains no keys, expected lines",
    "secret-key\n": "{file}:1: expected NAME KEY, or NAME sha256:HEX",
    "\n\nalice # secret-key\n": "{file}:3: expected NAME KEY",
    "-alice secret-key\n": "{file}:1: expected a name of at most 64",
    f"{'a' * 65} secret-key\n": "{file}:1: expected a name of at most 64",
    "älice secret-key\n": "{file}:1: expected a name of at most 64",
    "alice secret-kéy\n": "{file}:1: alice: the key has characters",
    "alice sha256:abc\n": "{file}:1: alice: expected 64 hexadecimal digits",
    "alice secret-key concurent=3\n": "did you mean concurrent?",
    "alice secret-key secret-key\n": "{file}:1: alice: after the key, expected only concurrent=N and per_minute=N",
    "alice secret-key concurrent=1 concurrent=2\n": "{file}:1: alice: after the key, expected only",
    "alice secret-key concurrent=0\n": "{file}:1: alice: concurrent: expected a whole number, 1 or more",
    "alice secret-key per_minute=many\n": "{file}:1: alice: per_minute: expected a whole number, 1 or more",
    "alice secret-key per_minute\n": "{file}:1: alice: per_minute: expected a whole number, 1 or more",
    "alice secret-key\nbob b\nalice c\n": "{file}:3: alice also has a key on line 1: expected one line per user",
    "alice secret-key\nbob secret-key\n": "{file}:2: bob has the same key as alice: expected a unique",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_reported_without_keys(file: Path, text: str) -> None:
    """Each mistake in the key file causes a one-line error that gives the line number but no key."""
    file.write_text(text)
    with pytest.raises(ValueError, match="keys") as raised:
        read_users(file)
    problem = str(raised.value)
    assert MISTAKES[text].format(file=file) in problem
    assert "secret" not in problem.removeprefix(str(file))
    assert "\n" not in problem


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys: cannot be read: No such file"):
        ApiKeys.of_file(tmp_path / "keys")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        ApiKeys.of_file(tmp_path)
    (tmp_path / "keys").write_bytes(b"alice \xff\n")
    with pytest.raises(ValueError, match="keys: not valid UTF-8"):
        ApiKeys.of_file(tmp_path / "keys")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_file_readable_by_others_causes_a_warning(file: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    file.chmod(mode)
    assert ApiKeys.of_file(file).user("key-of-bob")
    assert caplog.messages == [f"toolsim_api_key: {file} can be read by other users; run: chmod 600 {file}"]


def test_changed_file_applies_to_the_next_request(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A changed key file applies to the next request. If the new version has an error, the error is logged once, and
    the previous version remains in use.
    """
    caplog.set_level(logging.INFO)
    keys = ApiKeys.of_file(file)
    bob, eve = keys.user("key-of-bob"), keys.user("key-of-eve")
    assert bob is not None
    assert eve is not None
    file.write_text("bob new-key-of-bob\nkarl key-of-karl\n")
    assert keys.user("key-of-bob") is None
    assert keys.user("key-of-karl") == user("karl", "key-of-karl")
    renewed = keys.user("new-key-of-bob")
    assert renewed is not None
    assert renewed.owner == bob.owner
    assert keys.current(renewed) == renewed
    assert keys.current(bob) is keys.current(eve) is None
    assert caplog.messages == [f"toolsim_api_key: reloaded {file}: bob, karl"]
    caplog.clear()
    for broken in ("karl\n", ""):
        file.write_text(broken)
        assert keys.user("key-of-karl") is keys.user("key-of-karl") is not None
    file.unlink()
    assert keys.user("key-of-karl") is keys.user("key-of-karl") is not None
    assert [message.partition(": ")[2].partition("; ")[2] for message in caplog.messages] == [
        "the previous version stays in use"
    ] * 3


def test_single_key_has_an_owner() -> None:
    """A key without a user name belongs to an unnamed user, whose owner hash is derived from the key."""
    keys = ApiKeys.single("sk-1")
    found = keys.user("sk-1")
    assert found is not None
    assert (found.name, found.owner, keys.has_names) == ("", owner_of_token("sk-1"), False)
    assert keys.user("sk-2") is keys.user("") is None
    assert keys.proxyauth_user("me") == found


def test_proxyauth_users_are_owners(file: Path) -> None:
    """Each user name from ``proxyauth`` becomes a separate owner, distinct from the users in the key file."""
    keys = ApiKeys.of_file(file)
    me, alice = keys.proxyauth_user("me"), keys.proxyauth_user("alice")
    assert keys.current(me) == me
    assert len({me.owner, alice.owner, owner_of_name("alice"), owner_of_name("me")}) == 4
