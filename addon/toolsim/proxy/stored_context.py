"""The context of a Responses request in the store, from the arrival of the request to the storage of its answer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from toolsim.core.plan import StoredAs
from toolsim.proxy.jobs import Done, RequestJob, ResolveJob
from toolsim.wire.responses.resources import Resource
from toolsim.wire.responses.stored import Recalled, References


@dataclass(slots=True)
class StoredContext:
    """What one request refers to in the store, and what is stored of it."""

    partition: str
    """Of the client's key: what others have stored does not exist for it."""
    received: bytes = b""
    """The request's body."""
    encoding: str = ""
    """That of ``received``."""
    stored_as: StoredAs = field(default_factory=lambda: StoredAs(f"resp_{secrets.token_hex(24)}"))
    references: References = References()
    """What the request refers to."""
    body: bytes | None = None
    """The request with what it refers to, None if it refers to nothing."""
    own: bytes | None = None
    """The request's own items, as they are stored; None until they have been read."""
    names: tuple[str, ...] = ()
    """The ids that they got."""
    resource: Resource | None = None
    """What is requested, if not a turn."""
    in_background: bool = False
    """Whether the answer is made without its client."""

    def resolve_job(self, limit: int, recalled: Recalled | None = None) -> ResolveJob:
        """Return the job of finding what the request refers to; ``limit``: see ``Job``."""
        return ResolveJob(self.received, limit, recalled, encoding=self.encoding, owner=self.partition)

    def on_job(self, job: RequestJob) -> RequestJob:
        """Return how the request is to be rewritten, with what it refers to."""
        if self.body is not None:
            job = replace(job, data=self.body, encoding="")
        if job.action is not None:
            return job
        # The job also returns the request's own items, if nothing has read them yet.
        return replace(job, stored_as=self.stored_as, wants_own=self.own is None)

    def on_rewritten(self, done: Done) -> None:
        """Keep the items of the request, which the job of rewriting it has read."""
        if self.own is None and done.own:
            self.own, self.names = done.own, done.names or ()
