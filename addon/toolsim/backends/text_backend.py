"""Defines the base class of built-in backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from toolsim.core.conversation import ClientRequest
from toolsim.core.errors import ApiError
from toolsim.core.events import BackendEvent
from toolsim.wire.api import Api
from toolsim.wire.apis import CHAT, RESPONSES


class TextBackend(ABC):
    """A built-in backend, which answers a conversation with text. The loopback server provides its HTTP interface."""

    apis: ClassVar[Sequence[Api]] = (RESPONSES, CHAT)
    """The APIs whose requests ``answer`` supports."""

    async def start(self) -> None:  # noqa: B027  # Many backends have nothing to start.
        """Start the backend. If it cannot answer yet, raise no exception, but let ``answer`` yield ``Failed`` (503)."""

    async def stop(self) -> None:  # noqa: B027
        """Release all resources of the backend."""

    @abstractmethod
    async def models(self) -> Sequence[str] | ApiError:
        """Return the IDs of the models that the backend offers, or an error if they are unknown."""

    @abstractmethod
    def answer(self, request: ClientRequest) -> AsyncGenerator[BackendEvent]:
        """Answer one request with events. The last event is ``Closed`` or ``Failed``.

        The first event is ``Opened`` if the model starts to answer. Otherwise, it is ``Failed``, and the client
        receives an HTTP error. Closing the generator early stops the model. Raises errors.BadRequest if the request
        cannot be served.
        """
