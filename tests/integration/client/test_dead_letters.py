"""Dead letters of records as large as their topic takes, and while their broker is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus import Admin, BusError, Consumer, ConsumerRecord, ErrorCode, NewTopic, Producer, RunSummary, TopicPartition
from bus.model import TimestampType
from bus.processing import RecordFailed
from bus.processing.commits import OffsetTracker
from bus.processing.dead_letters import DeadLetters
from bus.processing.settings import parse_settings
from bus.processing.work import Work
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

LIMIT = 100_000
GROUP: dict[str, Any] = {"group_id": "billing", "auto_offset_reset": "earliest", "max_partition_fetch_bytes": 1 << 20}
HEADER = ("trace", b"1")
VALUE = b"x" * (LIMIT - len("kkktrace1"))  # as large as the topic takes, with key and header
LETTERS = TopicPartition("orders.dlq", 0)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    config = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)
    with running_broker(tmp_path / "root", config=config) as broker:
        at = f"127.0.0.1:{broker.port}"
        with Admin(at) as admin, Producer(at) as producer:
            admin.create_topics([NewTopic("orders", partitions=1, configs={"max.message.bytes": LIMIT})])
            producer.send("orders", VALUE, b"kkk", [HEADER]).result(50)
            producer.send("orders", b"good").result(50)
        yield at


def refuse(record: ConsumerRecord) -> None:
    if record.value != b"good":
        raise ValueError("not today " * 200)


def process(address: str, handler: Callable[[ConsumerRecord], None] = refuse, **options: Any) -> RunSummary:
    """Process until the second record is done."""
    done = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        handler(record)
        done.set()

    with Consumer(address, **GROUP) as consumer:
        consumer.subscribe(["orders"])
        return consumer.run(handle, stop=done, on_error="dead_letter", **options)


def letter(address: str) -> ConsumerRecord | None:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([LETTERS])
        return next(iter(consumer.poll(20_000) if consumer.end_offsets([LETTERS])[LETTERS] else ()), None)


def create_letters(address: str, limit: int) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic("orders.dlq", partitions=1, configs={"max.message.bytes": limit})])


def test_topic_that_is_created_has_room_for_the_headers(address: str) -> None:
    summary = process(address)
    assert (summary.dead_lettered, summary.committed) == (1, {TopicPartition("orders", 0): 2})
    found = letter(address)
    assert found is not None
    assert found.value == VALUE
    assert dict(found.headers)["bus.dlq.exception"].startswith(b"ValueError: not today")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("room", "names"),
    [
        (400, {"trace", *(f"bus.dlq.{name}" for name in ("reason", "attempts", "group", "topic", "partition"))}),
        (0, {"trace"}),
    ],
)
def test_letter_goes_without_added_headers_where_they_are_too_much(address: str, room: int, names: set[str]) -> None:
    create_letters(address, LIMIT + room)
    summary = process(address)
    assert (summary.dead_lettered, summary.committed) == (1, {TopicPartition("orders", 0): 2})
    found = letter(address)
    assert found is not None
    assert (found.value, found.key) == (VALUE, b"kkk")
    assert names <= dict(found.headers).keys()
    assert "bus.dlq.exception" not in dict(found.headers)


def test_letter_that_no_form_fits_names_its_record(address: str) -> None:
    create_letters(address, LIMIT // 2)
    assert process(address).committed == {TopicPartition("orders", 0): 2}
    found = letter(address)
    assert found is not None
    assert (found.value, found.key) == (None, None)
    headers = dict(found.headers)
    assert headers["bus.dlq.left_out_bytes"] == b"%d" % (len(VALUE) + 3)
    assert (headers["bus.dlq.topic"], headers["bus.dlq.offset"]) == (b"orders", b"0")


def test_letter_that_no_form_fits_is_skipped_or_stops_the_run_as_the_settings_say(address: str) -> None:
    create_letters(address, LIMIT // 2)
    with pytest.raises(RecordFailed) as raised:
        process(address, dead_letter_too_large="stop")
    assert isinstance(raised.value.__cause__, BusError)
    assert raised.value.__cause__.code is ErrorCode.MESSAGE_TOO_LARGE
    assert process(address, dead_letter_too_large="skip").committed == {TopicPartition("orders", 0): 2}
    assert letter(address) is None


# ---------------------------------------------------------------- while the broker is away


def test_letter_is_sent_again_until_it_is_in_the_log(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [BusError(ErrorCode.NETWORK_EXCEPTION, "the broker restarts") for _ in range(3)]
    send = DeadLetters._send_once

    def send_once(letters: DeadLetters, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        send(letters, *arguments)

    monkeypatch.setattr(DeadLetters, "_send_once", send_once)
    assert process(address, retry_backoff_ms=1).dead_lettered == 1
    assert letter(address) is not None


def test_closing_ends_the_sending_of_a_letter() -> None:
    letters = DeadLetters(
        ["127.0.0.1:1"], parse_settings({"retry_backoff_ms": 60_000}), {}, group_id="g", is_deserialized=False
    )
    record = ConsumerRecord("orders", 0, 7, 0, TimestampType.CREATE_TIME, None, b"v", (), 0)
    work = Work(record, TopicPartition("orders", 0), "lane", 1, OffsetTracker())
    letters._ensure_topic = lambda topic, source: letters.close() or 1  # type: ignore[assignment,method-assign,func-returns-value]
    with pytest.raises(BusError):
        letters.send(work, ValueError("no"))
