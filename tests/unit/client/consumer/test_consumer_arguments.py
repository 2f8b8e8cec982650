"""Invalid arguments of a consumer's calls are refused before any broker is asked, by what was expected and found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import bus
from bus import BusError, Consumer, OffsetAndMetadata, TopicPartition
from bus.aio import Consumer as AsyncConsumer
from bus.processing import listeners

ADDRESS = "127.0.0.1:1"
T0 = TopicPartition("t", 0)

CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda c: c.subscribe("orders"), r"list of topics, found the text 'orders': give \['orders'\]"),
    (lambda c: c.subscribe(5), "list of topics, found 5"),
    (lambda c: c.subscribe([5]), "names of topics, found 5"),
    (lambda c: c.subscribe(pattern="("), "regular expression, found '\\('"),
    (lambda c: c.subscribe(pattern=b"a"), "regular expression"),
    (lambda c: c.subscribe(["t"], on_assigned=5), "rebalance callback"),
    (lambda c: c.assign("t"), "partitions as a list of TopicPartition, found str"),
    (lambda c: c.assign(T0), "partitions as a list of TopicPartition, found TopicPartition"),
    (lambda c: c.assign([("t", 0)]), "TopicPartition, found tuple"),
    (lambda c: c.assign([TopicPartition("t", "0")]), "the partition of .* as an integer, found str"),  # type: ignore[arg-type]
    (lambda c: c.assign([TopicPartition("t", -1)]), "partition of 0 or more, found -1"),
    (lambda c: c.seek("t", 0), "partition as a TopicPartition, found str"),
    (lambda c: c.seek(T0, "5"), "offset of 0 or more, found '5'"),
    (lambda c: c.seek(T0, 2**63), "offset from 0 to .*, found 9223372036854775808"),
    (lambda c: c.seek_to_end(T0), "list of TopicPartition"),
    (lambda c: c.pause("t"), "list of TopicPartition"),
    (lambda c: c.resume([0]), "TopicPartition, found int"),
    (lambda c: c.position(0), "partition as a TopicPartition, found int"),
    (lambda c: c.position(T0, timeout_ms="1"), "timeout_ms as a number of milliseconds, found str"),
    (lambda c: c.lag("t"), "partition as a TopicPartition, found str"),
    (lambda c: c.commit(5), "mapping of partitions to offsets, or a record, found 5"),
    (lambda c: c.commit({"t": 5}), "a TopicPartition, found 't'"),
    (lambda c: c.commit({T0: 5}, timeout_ms="1"), "timeout_ms as a number of milliseconds, found str"),
    (lambda c: c.commit({T0: -1}), "the offset of t-0 from 0 to .*, found -1"),
    (lambda c: c.commit({T0: 2**63}), "the offset of t-0 from 0 to .*, found 9223372036854775808"),
    (lambda c: c.commit({T0: "5"}), "the offset of t-0 as an integer, found str"),
    (lambda c: c.commit({T0: OffsetAndMetadata(5, b"m")}), "the metadata of the offset of t-0 as text, found bytes"),  # type: ignore[arg-type]
    (lambda c: c.commit({T0: 5}, asynchronous="no"), "asynchronous as True or False, found str"),
    (
        lambda c: c.commit({T0: 5}, asynchronous=True, callback=5),
        "callback as a function of offsets and error",
    ),
    (lambda c: c.committed("t"), "list of TopicPartition"),
    (lambda c: c.beginning_offsets(T0), "list of TopicPartition"),
    (lambda c: c.end_offsets(["t"]), "TopicPartition, found str"),
    (lambda c: c.offsets_for_times([T0]), "mapping from TopicPartition to milliseconds, found list"),
    (lambda c: c.offsets_for_times({T0: -1}), "from 0 to .*, found -1"),
    (lambda c: c.partitions_for(5), "topic as text, found int"),
    (lambda c: c.poll("5"), "timeout_ms as a number of milliseconds, found str"),
    (lambda c: c.poll(None), "timeout_ms as a number of milliseconds, found None"),
    (lambda c: c.poll(-1), "0 milliseconds or more, found -1"),
    (lambda c: c.poll(5, 0), "max_records from 1 to .*, found 0"),
    (lambda c: c.poll_arrow(5, "9"), "max_records as an integer, found str"),
    (lambda c: c.close("5"), "timeout in seconds, or None, found str"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_wrong_argument_is_told(call: Callable[[Any], Any], message: str) -> None:
    with Consumer(ADDRESS, group_id="g") as consumer, pytest.raises(BusError, match=message):
        call(consumer)


def test_wrong_arguments_are_told_in_asyncio_too() -> None:
    async def scenario() -> None:
        async with AsyncConsumer(ADDRESS, group_id="g") as consumer:
            for call, message in CALLS:
                with pytest.raises(BusError, match=message):
                    await call(consumer)

    asyncio.run(scenario())


def test_event_is_expected_to_stop_a_run() -> None:
    with Consumer(ADDRESS, group_id="g") as consumer, pytest.raises(BusError, match=r"stop as a threading\.Event"):
        consumer.run(print, stop=True)  # type: ignore[arg-type]


class Closing:
    def __init__(self) -> None:
        self.count = 0

    def deserialize(self, topic: str, headers: object, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.count += 1
        raise RuntimeError("it breaks nothing")


def test_deserializers_are_closed_once() -> None:
    key, value = Closing(), Closing()
    consumer = Consumer(ADDRESS, key_deserializer=key, value_deserializer=value)
    consumer.close()
    consumer.close()
    assert (key.count, value.count) == (1, 1)
    with Consumer(ADDRESS, key_deserializer=key, value_deserializer=key):
        pass
    assert key.count == 2, "one object in two places is closed once"


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((), {"group_id": "g"}, "either topics or a pattern"),
        ((["orders"],), {"group_id": "g"}, r"one by one, found \['orders'\]"),
        ((print,), {}, "found @bus.listener alone"),
        (("orders",), {}, "expected a group_id"),
        (("orders",), {"group_id": 5}, "group_id"),
        (("orders",), {"group_id": "g", "max_poll_records": 0}, "max_poll_records"),
        (("orders",), {"group_id": "g", "worker": 3}, "'worker'; did you mean 'workers'"),
        (("orders",), {"group_id": "g", "max_poll_record": 3}, r"; did you mean 'max_poll_records'\?"),
        (("orders",), {"group_id": "g", "order": "keys"}, "order"),
        ((), {"group_id": "g", "pattern": "("}, "regular expression"),
    ],
)
def test_listener_is_checked_where_it_is_declared(arguments: Any, settings: Any, message: str) -> None:
    with pytest.raises(BusError, match=message):
        bus.listener(*arguments, **settings)
    assert listeners._listeners == []
