"""The catalogue in a context that the backend stores: sent once per conversation, not with each turn.

If a Responses backend stores the conversation, a request that continues it (``previous_response_id``) carries only new
items. The context still holds the catalogue from before: sent with each turn, it would accumulate. So it is left out if
the context certainly holds it, and one line at the end of the last user message reminds the model of it.

1. We remember the catalogue of a context by the id of its last answer, as a digest of text and role, and beside it the
   answer with which it was sent. It is left out only if this request's own catalogue would be the same. With another
   tool, choice or answer format it is sent again, and the context then holds the new one.
2. In doubt it is sent: after an unknown answer (from before a restart, through another proxy, too long ago), one that
   did not complete or was not to be stored, in a conversation with a deleted answer, and in a context that may have
   lost its beginning (``truncation``, ``context_management``) or that others change (a ``conversation``).
3. Within one answer of several turns it is sent each time: the client knows the id of only one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256

from toolsimlib.conversation import ClientRequest
from toolsimlib.plan import HeldCatalogue, Plan
from toolsimlib.request.manifest import manifest
from toolsimlib.request.transforms import tools_shown


def catalogue_of(plan: Plan) -> str:
    """Return the catalogue of the tools on offer, and the rules for calling them; "" without any."""
    policy = plan.policy
    if not plan.tools:
        return ""
    return manifest(
        tools_shown(plan.tools, policy.transforms),
        plan.choice,
        sentinel=policy.sentinel,
        one_call=plan.one_call,
        answer_format=plan.answer_format,
        form=policy.manifest,
        named=plan.named,
    )


@lru_cache(maxsize=8)
def digest_of(catalogue: str, role: str) -> str:
    """Return the digest of a catalogue. Most requests of a client have the same catalogue."""
    return sha256(f"{role}\0{catalogue}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def context_after(
    request: ClientRequest, digest: str, by_answer: Mapping[str, HeldCatalogue]
) -> tuple[HeldCatalogue | None, bool]:
    """Return the catalogue that the context holds after a request's answer, None if that is uncertain, and whether it
    held that very one before.

    ``digest``: of the request's own catalogue; ``by_answer``: those that contexts hold, by the id of their last answer.
    """
    held = by_answer.get(request.continues) if request.continues else None
    if held is None or held.digest != digest:
        return HeldCatalogue(digest) if request.is_kept_whole else None, False
    return held if request.is_kept_whole else None, True
