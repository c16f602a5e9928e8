"""A client connection that is never silently reopened. Using a closed connection is an error."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass
class Reply:
    """A complete HTTP response, as the client receives it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the JSON documents of a stream's events, and ``[DONE]`` as a string."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


class Line:
    """A keep-alive connection to a proxy."""

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
        self._connection.connect()
        self._connection.auto_open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed after the last response."""
        return self._connection.sock is None

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.request("POST", path, body, **headers)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        response = self.begin(method, path, body, **headers)
        return Reply(response.status, response.headers, response.read())

    def begin(self, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request, and return the response as soon as its headers have arrived."""
        self.send(method, path, body, **headers)
        return self._connection.getresponse()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> None:
        """Send a request without waiting for the response."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        self._connection.request(method, path, data, sent | {n.replace("_", "-"): v for n, v in headers.items()})


def arrivals(response: http.client.HTTPResponse) -> Iterator[tuple[float, bytes]]:
    """Yield each piece of data as it arrives, with the current time."""
    while data := response.read1(65536):
        yield time.monotonic(), data
