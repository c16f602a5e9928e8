"""Matches tool outputs to calls, and labels the record of each output with its call.

Clients send the outputs of parallel calls in any order, IDs can repeat, and a model sees no IDs if past calls are shown
as blocks. The prompt must therefore state which output belongs to which call. These rules work for small models
(``docs/figures.md``):

1. An output belongs to the first preceding call with the same ID and no output yet. If there is none, it belongs to the
   last preceding call with that ID or, since some clients send outputs first, to the first following call with that ID.
2. The record of an output names the call by its content (``name=… arguments=…``), or by ``call_id=…`` if past calls are
   shown as records, which contain their IDs. The label for the second call with the same content ends with ``nth=2``,
   and so on.
3. Adjacent outputs are shown in the order of their calls, because small models rely on the order more than on labels.
4. An output without a call is labeled with its ID. The call might be in a history stored at the backend, so these
   outputs are shown first. If toolsim created the IDs, these outputs are sorted by the number in the ID.

Later items do not change the text before an answer or a user message, so the backend's prefix cache remains valid.
There is one exception: an output that precedes its call has a different label until the call arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from toolsim.core.conversation import Call, CallOutput, Item
from toolsim.request.record import call_label, id_label
from toolsim.wire.ids import highest_number


def label_outputs(items: Sequence[Item], *, by_id: bool) -> Iterator[tuple[Item, str]]:
    """Yield the items in the order of the prompt: each output with its label, and each other item with "".

    ``by_id`` means that calls are shown with their IDs.
    """
    owners = _owners(items)
    labels = _labels([item for item in items if isinstance(item, Call)], by_id=by_id)
    outputs: list[tuple[tuple[int, int], CallOutput, str]] = []
    for place, item in enumerate(items):
        if not isinstance(item, CallOutput):
            yield from _in_order(outputs)
            outputs = []
            yield item, ""
        elif (owner := owners.get(place)) is not None:
            outputs.append(((owner, 0), item, labels[owner]))
        else:
            number = highest_number([item.call_id])
            outputs.append(((-1, number), item, id_label(item.call_id)))
    yield from _in_order(outputs)


def _owners(items: Sequence[Item]) -> dict[int, int]:
    """Map the position of each output to the number of its call (rule 1)."""
    having: dict[str, list[int]] = {}
    for number, call in enumerate(item for item in items if isinstance(item, Call)):
        having.setdefault(call.call_id, []).append(number)
    # For each ID: the number of calls so far, and the number of these calls that have an output. Outputs are assigned
    # in the order of the calls.
    before: dict[str, int] = {}
    answered: dict[str, int] = {}
    owners = {}
    for place, item in enumerate(items):
        if isinstance(item, Call):
            before[item.call_id] = before.get(item.call_id, 0) + 1
        elif isinstance(item, CallOutput) and (calls := having.get(item.call_id)):
            last = max(before.get(item.call_id, 0) - 1, 0)
            index = min(answered.get(item.call_id, 0), last)
            answered[item.call_id] = index + 1
            owners[place] = calls[index]
    return owners


def _labels(calls: Sequence[Call], *, by_id: bool) -> list[str]:
    """Return a label for the output of each call (rule 2), such as ``name=get_weather arguments={"city":"Paris"}``."""
    labels = []
    named: dict[str, int] = {}
    for call in calls:
        label = id_label(call.call_id) if by_id else call_label(call)
        named[label] = nth = named.get(label, 0) + 1
        labels.append(label if nth == 1 else f"{label} nth={nth}")
    return labels


def _in_order(outputs: list[tuple[tuple[int, int], CallOutput, str]]) -> list[tuple[Item, str]]:
    """Sort adjacent outputs by their sort keys, so that they are in the order of their calls. The keys are dropped."""
    outputs.sort(key=itemgetter(0))
    return [(output, label) for _, output, label in outputs]
