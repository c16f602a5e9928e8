"""Which output belongs to which call, and how its record says so.

Clients send the outputs of parallel calls in any order, ids may repeat, and a model sees no ids at
all if past calls are shown as blocks. The prompt alone must say which output is whose, in a way
that small models follow (``docs/figures.md``):

1. An output belongs to the first call before it that has its id and no output yet; else to the
   last call before it that has its id; else, since some clients send outputs first, to the first
   such call after it.
2. Its record names the call by what was called (``name=… arguments=…``), or by ``call_id=…`` if
   past calls are shown as records, which contain their ids. Of several calls that are named alike,
   the second one is ``nth=2``, and so on.
3. Adjacent outputs are shown in the order of their calls: small models trust it more than words.
4. An output without a call is named by its id. The backend may hold its call: such outputs come
   first, in the order of their numbers if we made their ids.

What is added after an answer or a user's words changes nothing above it, so that the backend's
prefix cache holds; but an output that came before its call is named anew once the call is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from toolsim.core.conversation import Call, CallOutput, Item
from toolsim.request.record import call_label, id_label
from toolsim.wire.ids import highest_number


def paired(items: Sequence[Item], *, by_id: bool) -> Iterator[tuple[Item, str]]:
    """Yield ``items`` as they are shown, each output with its label, anything else with "".

    ``by_id``: calls are shown with their ids.
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
    """Return for the place of each output the number of its call among the calls (rule 1)."""
    having: dict[str, list[int]] = {}
    for number, call in enumerate(item for item in items if isinstance(item, Call)):
        having.setdefault(call.call_id, []).append(number)
    # How many calls with an id there have been, and how many of those have an output: always the first ones.
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
    """Return how the outputs of each call name it (rule 2)."""
    labels = []
    named: dict[str, int] = {}
    for call in calls:
        label = id_label(call.call_id) if by_id else call_label(call)
        named[label] = nth = named.get(label, 0) + 1
        labels.append(label if nth == 1 else f"{label} nth={nth}")
    return labels


def _in_order(outputs: list[tuple[tuple[int, int], CallOutput, str]]) -> list[tuple[Item, str]]:
    """Return adjacent outputs, each with what it is sorted by, in the order of their calls."""
    outputs.sort(key=itemgetter(0))
    return [(output, label) for _, output, label in outputs]
