"""The catalogue in a context that its backend keeps: told once in a conversation, not with each turn.

Over a Responses backend's own store a request that goes on from an earlier one (``previous_response_id``) says only
what is new. The catalogue that was told before is still in the context: told again with each turn, it would stand there
as often as there were turns. So it is left out where the context certainly holds it, and one line at the end of the
last user message reminds the model of it.

1. What a context holds is remembered by the id of its last answer, as a digest of the very text and its role. Only if
   this request's would be the same is it left out. With another tool, choice or form of answer it is told anew, and
   that is then what the context holds. The answer with which it was told is remembered beside it.
2. Whatever is uncertain counts as not told: an answer of which nothing is remembered (from before a restart, by way
   of another proxy, too long ago), one that did not complete or was not to be kept, a conversation of which an answer
   was deleted, and a context that may have lost its beginning (``truncation``, ``context_management``) or that others
   change (a ``conversation``).
3. What several turns within one answer are shown is told each time: the client knows the id of one of them alone.
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
    """Return what tells one catalogue from another. A client's requests have the same one, mostly."""
    return sha256(f"{role}\0{catalogue}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def context_after(
    request: ClientRequest, digest: str, told: Mapping[str, HeldCatalogue]
) -> tuple[HeldCatalogue | None, bool]:
    """Return the catalogue that the context holds with a request's answer, None if that is uncertain, and whether it
    held that very one before.

    ``digest``: of the request's own catalogue; ``told``: those that contexts hold, by the id of their last answer.
    """
    held = told.get(request.continues) if request.continues else None
    if held is None or held.digest != digest:
        return HeldCatalogue(digest) if request.is_kept_whole else None, False
    return held if request.is_kept_whole else None, True
