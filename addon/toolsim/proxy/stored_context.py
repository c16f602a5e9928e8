"""The stored context of a Responses request, from the arrival of the request until its answer is stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from toolsim.core.plan import StoredAs
from toolsim.proxy.jobs import RequestJob, RequestResult, ResolveJob
from toolsim.wire.responses.resources import Resource
from toolsim.wire.responses.stored import Recalled, References


@dataclass(slots=True)
class StoredContext:
    """The stored data to which a request refers, and the request's own items, which are stored with the answer."""

    partition: str
    """The partition of the store for the client's key. It contains no data from clients with other keys."""
    received: bytes = b""
    """The request's body as received."""
    encoding: str = ""
    """The content encoding of ``received``."""
    stored_as: StoredAs = field(default_factory=lambda: StoredAs(f"resp_{secrets.token_hex(24)}"))
    references: References = References()
    """The request's references to stored data."""
    body: bytes | None = None
    """The request's body with stored data in place of the references, or None if there are no references."""
    own: bytes | None = None
    """The items in the request itself, as JSON for the store, or None if the request has not been parsed yet."""
    names: tuple[str, ...] = ()
    """The IDs assigned to the items in ``own``."""
    resource: Resource | None = None
    """The requested resource, or None if the request is a turn."""
    in_background: bool = False
    """Whether the answer is created in the background, without a waiting client."""

    def resolve_job(self, limit: int, recalled: Recalled | None = None) -> ResolveJob:
        """Return the job that finds the request's references, or replaces them with the stored data in ``recalled``.

        ``limit`` is the maximum decoded size of the body.
        """
        return ResolveJob(recalled, data=self.received, limit=limit, encoding=self.encoding, owner=self.partition)

    def on_job(self, job: RequestJob) -> RequestJob:
        """Return the job that rewrites the request, with stored data in place of the request's references."""
        if self.body is not None:
            job = replace(job, data=self.body, encoding="")
        if job.action is not None:
            return job
        # If the items in ``own`` are still missing, the job also returns them.
        return replace(job, stored_as=self.stored_as, wants_own=self.own is None)

    def on_rewritten(self, done: RequestResult) -> None:
        """Keep the request's items if the job that rewrote the request returned them."""
        if self.own is None and done.own:
            self.own, self.names = done.own, done.names
