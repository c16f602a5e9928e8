"""Does jobs: at once where that is quick, otherwise in a worker, so that nobody waits for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from toolsimlib.proxy.jobs import Done, Job, is_heavy, run
from toolsimlib.proxy.worker import Crew


class Work:
    """Does jobs; ``has_workers``: whether there is anybody who would have to wait."""

    def __init__(self, *, has_workers: bool) -> None:
        self._crew = Crew() if has_workers else None

    def take(self, job: Job, then: Callable[[Done], None]) -> Awaitable[None] | None:
        """Do a job and hand its result on: at once (None), or once what is returned is awaited."""
        if self._crew is not None and is_heavy(job):
            return self._awaited(job, then)
        then(run(job))
        return None

    async def do(self, job: Job) -> Done:
        """Do a job."""
        return await self._crew.run(job) if self._crew is not None and is_heavy(job) else run(job)

    def stop(self) -> None:
        """End the workers."""
        if self._crew is not None:
            self._crew.stop()

    async def _awaited(self, job: Job, then: Callable[[Done], None]) -> None:
        then(await self.do(job))
