"""The accepted client keys: the key in the ``toolsim_api_key`` option, or the keys in the file that the option names.

A file has one user per line, and ``#`` begins a comment::

    alice sk-alice-8c1f0b6e51 concurrent=4 per_minute=60
    bob   sha256:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90

1. *Owner.* The owner of requests is derived from the user's name, so that users keep their stored data when their key
   changes. With a single key, the owner is derived from the key.
2. *Lookup.* Keys are looked up by their digest, and digests are compared in constant time. Only digests are stored.
3. *Limits.* ``concurrent`` and ``per_minute`` count turns (``user_limits.py``).
4. *Invalid files* prevent startup, with a one-line message that names the file and line. ``ReloadedFile`` describes how
   later changes are handled. No message contains a key.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from toolsim.command_line import nearest
from toolsim.proxy.options.reloaded_file import ReloadedFile

logger = logging.getLogger(__name__)

FILE = "file:"
_OPTION = "toolsim_api_key"
_DIGEST = "sha256:"
_LIMITS = ("concurrent", "per_minute")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
# Matches a key whose characters are all valid both in a header and in a line of the key file.
_KEY = re.compile(r"[\x21-\x7e]+")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class User:
    """The user of a key.

    ``digest`` is the SHA-256 of the key, and ``owner`` identifies the owner of the user's requests. A limit of 0 means
    that there is no limit.
    """

    name: str
    """The user's name in the key file, or "" for a single key."""
    digest: bytes
    owner: str
    concurrent: int = 0
    per_minute: int = 0


Users = Mapping[bytes, User]
"""Maps the digests of keys to their users."""


class ApiKeys:
    """The accepted client keys. ``key_file`` is the file that contains them, or None if there is a single key."""

    def __init__(self, users: Users, key_file: ReloadedFile[Users] | None = None) -> None:
        self._users = users
        self.key_file = key_file

    def __repr__(self) -> str:
        return f"ApiKeys({self.key_file or 'one key'})"

    @classmethod
    def single(cls, key: str) -> ApiKeys:
        """Create an object that accepts a single key."""
        return cls({digest_of(key): User("", digest_of(key), owner_of_token(key))})

    @classmethod
    def of_file(cls, file: Path) -> ApiKeys:
        """Create an object that accepts the keys in a key file.

        Raises ValueError if the file is invalid. The message names the file and the line.
        """
        return cls({}, ReloadedFile(_OPTION, file, read_users, names_of))

    @property
    def has_names(self) -> bool:
        """Whether the users have names, which is the case if the keys are in a key file."""
        return self.key_file is not None

    def users(self) -> Users:
        """Return the current users, by digest."""
        return self.key_file.current() if self.key_file is not None else self._users

    def user(self, key: str) -> User | None:
        """Return the user of a key, or None if the key is not accepted."""
        return self.by_digest(digest_of(key)) if key else None

    def by_digest(self, digest: bytes) -> User | None:
        """Return the current user whose key has this digest, or None."""
        user = self.users().get(digest)
        return user if user is not None and hmac.compare_digest(user.digest, digest) else None

    def current(self, user: User) -> User | None:
        """Return the current version of a user, or None if the user's key is no longer accepted."""
        return self.by_digest(user.digest) if user.digest else user

    def proxyauth_user(self, name: str) -> User:
        """Return the user for a name that mitmproxy's ``proxyauth`` option has authenticated."""
        if self.key_file is None:
            return next(iter(self._users.values()))
        # The names in a key file contain no spaces, so they cannot be equal to this name.
        return User("", b"", owner_of_name(f"proxyauth {name}"))


def digest_of(key: str) -> bytes:
    """Return the digest by which a key is looked up."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


@lru_cache(maxsize=64)
def owner_of_token(token: str) -> str:
    """Return the owner of requests with this token, as a one-way hash. The token may be empty."""
    # The result is cached, because a hash takes up to 0.03 ms in a busy proxy. The hashed text is the same as in
    # earlier versions, so that data from those versions remains accessible.
    return _hashed(b"Bearer " + token.encode("utf-8", "surrogateescape") if token else b"")


def owner_of_name(name: str) -> str:
    """Return the owner of a named user's requests. The result differs from the owner of any token."""
    return _hashed(b"user " + name.encode())


def _hashed(words: bytes) -> str:
    return sha256(b"toolsim\0" + words + b"\0\0").hexdigest()[:32]


def names_of(users: Users) -> str:
    """Return the names of the first few users, and the number of remaining users, as text for the log."""
    names = [user.name for user in users.values()]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def read_users(file: Path) -> Users:
    """Return the users in a key file. Raises ValueError, with file and line, for an invalid file."""
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except OSError as problem:
        raise ValueError(f"{file}: cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ValueError(f"{file}: not valid UTF-8") from problem
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s: %s can be read by other users; run: chmod 600 %s", _OPTION, file, file)
    users: dict[bytes, User] = {}
    lines: dict[str, int] = {}
    for number, words in _lines(text):
        try:
            user = _user(words)
            if user.name in lines:
                raise ValueError(f"{user.name} also has a key on line {lines[user.name]}: expected one line per user")
            if (other := users.get(user.digest)) is not None:
                raise ValueError(f"{user.name} has the same key as {other.name}: expected a unique key for each user")
        except ValueError as problem:
            raise ValueError(f"{file}:{number}: {problem}") from None
        users[user.digest] = user
        lines[user.name] = number
    if not users:
        raise ValueError(f"{file}: contains no keys, expected lines such as: alice KEY concurrent=4 per_minute=60")
    return users


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each non-empty line. A ``#`` begins a comment only at the start of a word."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        words = line.split()
        end = next((place for place, word in enumerate(words) if word.startswith("#")), len(words))
        if end:
            yield number, words[:end]


def _user(words: list[str]) -> User:
    """Return the user that a line describes.

    Raises ValueError if the line is invalid. The message does not contain the key.
    """
    name, *rest = words
    if not _NAME.fullmatch(name):
        raise ValueError("expected a name of at most 64 letters, digits, '.', '_', '@' or '-', and then a key")
    if not rest:
        # If a line has only one word, the error message does not quote it, because it might be the key.
        raise ValueError("expected NAME KEY, or NAME sha256:HEX")
    key, *limits = rest
    if key.startswith(_DIGEST):
        if not _HEX.fullmatch(written := key.removeprefix(_DIGEST)):
            raise ValueError(f"{name}: expected 64 hexadecimal digits after {_DIGEST}")
        digest = bytes.fromhex(written)
    elif _KEY.fullmatch(key):
        digest = digest_of(key)
    else:
        raise ValueError(f"{name}: the key has characters that are invalid in a header: expected ASCII")
    found: dict[str, int] = {}
    for word in limits:
        limit, is_given, number = word.partition("=")
        if limit not in _LIMITS or limit in found:
            raise ValueError(
                f"{name}: after the key, expected only {' and '.join(f'{each}=N' for each in _LIMITS)}, each at most "
                "once" + (nearest(limit, _LIMITS) if is_given and limit not in _LIMITS else "")
            )
        if not re.fullmatch(r"[1-9][0-9]{0,8}", number):
            raise ValueError(f"{name}: {limit}: expected a whole number, 1 or more")
        found[limit] = int(number)
    return User(name, digest, owner_of_name(name), **found)
