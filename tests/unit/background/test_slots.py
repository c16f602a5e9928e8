"""Tests for the limit on background answers, and for how the API keys share the available slots."""

from __future__ import annotations

from contextlib import suppress

import pytest
from toolsim.background.slots import LATELY_SECONDS, Slots


class Proxy:
    """Slots for background answers, with a simulated clock. Each answer runs until the test ends it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0.0
        self.taken: list[str] = []
        self.places = Slots(lambda: self.taken, lambda: self.now)

    def begin(self, partition: str) -> bool:
        """Request a slot for an API key's partition, and return whether the slot was granted."""
        refusal = self.places.refusal(partition, self.most)
        if refusal is not None:
            assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
            return False
        self.taken.append(partition)
        return True

    def begin_all(self, partition: str) -> int:
        """Request slots for an API key's partition until a request is refused, and return the number of granted
        slots.
        """
        return next(count for count in range(100) if not self.begin(partition))


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_single_key_can_use_all_slots(most: int) -> None:
    """A single key can use all slots for background answers, even repeatedly, but never more than the limit."""
    proxy = Proxy(most)
    for _ in range(3):
        assert proxy.begin_all("a") == most
        proxy.taken.clear()


def test_free_slots_go_to_the_key_with_fewer() -> None:
    """If one key uses all slots, its answers are not interrupted. Each slot that becomes free goes to a second key
    until both keys have an equal number of slots.
    """
    proxy = Proxy(8)
    assert proxy.begin_all("a") == 8
    assert not proxy.begin("b")
    for held in range(1, 5):
        proxy.taken.remove("a")
        assert not proxy.begin("a")
        assert proxy.begin("b")
        assert proxy.taken.count("b") == held
    assert not proxy.begin("a")
    proxy.taken.remove("a")
    assert not proxy.begin("b")
    assert proxy.begin("a")


def test_recently_refused_key_reserves_slots() -> None:
    """Half of the slots are reserved for a second key while it has an answer in progress or was recently refused.
    Later, the first key can use all slots.
    """
    proxy = Proxy(4)
    assert proxy.begin("b")
    proxy.now += 2 * LATELY_SECONDS
    assert proxy.begin_all("a") == 2
    proxy.taken.clear()
    assert proxy.begin_all("a") == 4
    assert not proxy.begin("b")
    proxy.taken.clear()
    proxy.now += LATELY_SECONDS - 1
    assert proxy.begin_all("a") == 2
    proxy.now += 2
    assert proxy.begin_all("a") == 2
    assert proxy.taken.count("a") == 4


def test_only_last_two_keys_are_remembered() -> None:
    """Only the last two keys that requested a slot are remembered. This is sufficient to find a key that differs from
    the current one.
    """
    proxy = Proxy(4)
    for number in range(1000):
        assert proxy.places.refusal(str(number), 4) is None
    assert len(proxy.places._asked) == 2
    assert proxy.begin_all("a") == 2


def test_slot_is_in_use_during_the_first_write() -> None:
    """A slot is in use while its answer is being started. If starting the answer fails, the slot becomes free again."""
    proxy = Proxy(1)
    with proxy.places.starting("a"):
        assert not proxy.begin("a")
    with suppress(OSError), proxy.places.starting("a"):
        raise OSError
    assert proxy.begin("a")
