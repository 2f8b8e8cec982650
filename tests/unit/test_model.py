"""Values that are told as text and read back."""

from __future__ import annotations

import pytest

from bus.model import RunningBroker


@pytest.mark.parametrize("address", ["127.0.0.1:9094", "[::1]:9094", "a.example, pid 3:1"])
def test_broker_is_read_back_from_what_it_says_in_its_lock(address: str) -> None:
    broker = RunningBroker(7, address, 4711)
    assert RunningBroker.parse(str(broker)) == broker


@pytest.mark.parametrize(
    "text", ["", "bus log repair (process 3)", "broker x at h:1, pid 3", "broker 1 at h:1, pid 3 "]
)
def test_other_holders_of_a_lock_are_no_brokers(text: str) -> None:
    assert RunningBroker.parse(text) is None
