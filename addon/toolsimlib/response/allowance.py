"""Which calls one choice may make: as many as its limit allows, and none twice (see ``duplicates``)."""

from __future__ import annotations

from toolsimlib.plan import Plan
from toolsimlib.response.duplicates import Duplicates


class Allowance:
    """Counts the calls of one choice. ``made``: how many were emitted; ``limit``: 0 = any number."""

    def __init__(self, plan: Plan) -> None:
        self.limit = 1 if plan.one_call or plan.legacy_functions else plan.policy.tool_block_max
        self.made = 0
        self._duplicates = Duplicates(all_duplicates=plan.policy.tool_block_dedup)

    @property
    def is_spent(self) -> bool:
        """Whether no further call may be made."""
        return 0 < self.limit <= self.made

    @property
    def may_be_repeated(self) -> bool:
        """Whether a structured call may be one that came as text before."""
        return self._duplicates.has_unpaired_text

    def repeats(self, name: str, arguments: str, *, structured: bool) -> bool:
        """Return whether a call was made already; ``structured``: the backend emitted it as one."""
        return self._duplicates.is_duplicate(name, arguments, structured=structured)
