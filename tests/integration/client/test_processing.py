"""The processing loop and listeners with a broker: what is handled, committed, and put aside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bus
from bus import Admin, BusError, Consumer, ConsumerRecord, NewTopic, Producer, RecordFailed, TopicPartition
from bus.client.consumer.records import RecordDeserializationError
from bus.processing import listeners
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

GROUP: dict[str, Any] = {"group_id": "billing", "auto_offset_reset": "earliest"}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    config = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)
    with running_broker(tmp_path / "root", config=config) as broker:
        at = f"127.0.0.1:{broker.port}"
        with Admin(at) as admin:
            admin.create_topics([NewTopic("orders", partitions=3)])
        yield at


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_listeners", [])


def produce(address: str, numbers: range, topic: str = "orders", poison: frozenset[int] = frozenset()) -> None:
    with Producer(address) as producer:
        for number in numbers:
            value = b"{poison" if number in poison else json.dumps({"n": number}).encode()
            producer.send(topic, value, b"k%d" % (number % 10), headers=[("trace", b"%d" % number)])


class Until:
    """Ends a run when `count` values were seen."""

    def __init__(self, count: int) -> None:
        self.stop = threading.Event()
        self.seen: list[Any] = []
        self._count = count
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> None:
        with self._lock:
            self.seen.append(value)
            if len(self.seen) == self._count:
                self.stop.set()


def run(address: str, handler: Callable[..., Any], stop: threading.Event, **options: Any) -> bus.RunSummary:
    of_consumers = ("key_deserializer", "value_deserializer", "max_poll_records")
    configs = {name: options.pop(name) for name in of_consumers if name in options}
    with Consumer(address, **GROUP, **configs) as consumer:
        consumer.subscribe(["orders"])
        return consumer.run(handler, stop=stop, **options)


def end_offsets_sum(address: str, topic: str) -> int:
    with Consumer(address) as consumer:
        return sum(consumer.end_offsets(consumer.partitions_for(topic)).values())


def committed_sum(address: str) -> int:
    with Consumer(address, **GROUP) as consumer:
        committed = consumer.committed([TopicPartition("orders", number) for number in range(3)])
        return sum(each.offset for each in committed.values() if each is not None)


@pytest.mark.parametrize("ack", ["record", "batch", "count", "time"])
def test_a_run_goes_on_where_the_last_one_ended(address: str, ack: str) -> None:
    produce(address, range(300))
    first = Until(300)
    summary = run(address, lambda record: first(record.value), first.stop, ack=ack)
    assert (summary.handled, summary.ended_by) == (300, "stop")
    assert sum(summary.committed.values()) == 300 == committed_sum(address)
    produce(address, range(300, 400))
    second = Until(100)
    assert run(address, lambda record: second(record.value), second.stop, ack=ack).handled == 100
    assert len({*first.seen, *second.seen}) == 400


def test_by_key_each_keys_records_come_in_order_while_many_are_handled_at_once(address: str) -> None:
    produce(address, range(400))
    until = Until(400)

    async def handler(record: ConsumerRecord) -> None:
        until((record.key, json.loads(record.value or b"")["n"]))

    run(address, handler, until.stop, order="key", workers=50)
    for key in {key for key, _ in until.seen}:
        numbers = [number for other, number in until.seen if other == key]
        assert numbers == sorted(numbers)


def test_what_a_deserializer_or_a_handler_rejects_is_in_the_dead_letter_topic_as_it_was_with_the_reason(
    address: str,
) -> None:
    produce(address, range(100), poison=frozenset({17, 61}))
    until = Until(97)

    def handler(record: ConsumerRecord) -> None:
        if record.value["n"] == 42:  # type: ignore[index,call-overload]
            raise RuntimeError("no such order")
        until(record.value["n"])  # type: ignore[index,call-overload]

    done = threading.Event()
    letters: dict[int, tuple[Any, dict[str, bytes | None]]] = {}

    def read_letters_and_end() -> None:
        letters.update(read_letters(address, 3))
        until.stop.wait(30)
        done.set()

    thread = threading.Thread(target=read_letters_and_end, name="reads the dead letters")
    thread.start()
    with Consumer(address, **GROUP, value_deserializer=json.loads) as consumer:
        consumer.subscribe(["orders"])
        summary = consumer.run(handler, stop=done, on_error="dead_letter", retries=1, retry_backoff_ms=1)
    thread.join()
    assert (summary.handled, summary.dead_lettered, summary.retried) == (97, 3, 1)
    assert committed_sum(address) == 100
    assert set(letters) == {17, 42, 61}
    record, headers = letters[17]
    assert (record.value, record.key) == (b"{poison", b"k7")
    assert headers["bus.dlq.reason"] == b"deserializer"
    record, headers = letters[42]
    assert record.value == b'{"n": 42}', "the bytes of the log, not what a serializer would make of the object"
    assert headers["bus.dlq.reason"] == b"handler"
    assert headers["bus.dlq.exception"] == b"RuntimeError: no such order"
    assert (headers["bus.dlq.attempts"], headers["bus.dlq.group"]) == (b"2", b"billing")
    assert (headers["bus.dlq.topic"], headers["bus.dlq.partition"]) == (b"orders", b"%d" % record.partition)
    with Consumer(address, auto_offset_reset="none") as reader:
        place = TopicPartition("orders", record.partition)
        reader.assign([place])
        reader.seek(place, int(headers["bus.dlq.offset"] or b""))
        original = reader.poll(5_000, max_records=1)[0]
    assert (original.value, b"%d" % original.timestamp_ms) == (record.value, headers["bus.dlq.timestamp"])


def read_letters(address: str, count: int) -> dict[int, tuple[Any, dict[str, bytes | None]]]:
    """Return the letters, keyed by the header `trace` of the original."""
    found: dict[int, tuple[Any, dict[str, bytes | None]]] = {}
    with Consumer(address, group_id="letters", auto_offset_reset="earliest", metadata_max_age_ms=100) as consumer:
        consumer.subscribe(pattern=r"orders\.dlq")
        while len(found) < count:
            for record in consumer.poll(200):
                headers = dict(record.headers)
                found[int(headers["trace"] or b"")] = (record, headers)
    return found


def test_one_partitions_poison_costs_the_others_nothing(address: str) -> None:
    with Producer(address) as producer:
        for number in range(30):
            value = b"{poison" if number == 0 else b"%d" % number
            producer.send("orders", value, partition=0 if number < 3 else 1 + number % 2)
    seen: list[Any] = []
    rejected: list[TopicPartition] = []
    with Consumer(address, auto_offset_reset="earliest", value_deserializer=json.loads) as consumer:
        consumer.assign(sorted(consumer.partitions_for("orders")))
        while len(seen) < 29:
            try:
                seen += [record.value for record in consumer.poll(5_000)]
            except RecordDeserializationError as error:
                rejected.append(error.partition)
                consumer.seek(error.partition, error.offset + 1)
    assert sorted(seen) == list(range(1, 30))
    assert rejected == [TopicPartition("orders", 0)]


def test_a_failure_is_raised_and_the_next_run_begins_with_its_record(address: str) -> None:
    with Producer(address) as producer:
        for number in range(5):
            producer.send("orders", b"%d" % number, partition=0)

    def handler(record: ConsumerRecord) -> None:
        if record.value == b"3":
            raise ValueError("three")

    with pytest.raises(RecordFailed) as raised:
        run(address, handler, threading.Event())
    assert raised.value.record.value == b"3"
    assert committed_sum(address) == 3
    until = Until(2)
    run(address, lambda record: until(record.value), until.stop)
    assert until.seen == [b"3", b"4"]


def test_two_runs_share_a_topic_and_nothing_is_handled_twice_when_one_leaves(address: str) -> None:
    together = Until(600)
    first_stop, both_read = threading.Event(), threading.Barrier(2, timeout=30)
    has_met: set[str] = set()

    def work(name: str, stop: threading.Event) -> None:
        with Consumer(address, **GROUP, partition_assignment_strategy="cooperative-sticky") as consumer:
            consumer.subscribe(["orders"], on_assigned=lambda partitions: meet(name) if partitions else None)
            consumer.run(lambda record: together((record.partition, record.offset)), stop=stop)

    def meet(name: str) -> None:
        if name not in has_met:
            has_met.add(name)
            if name == "b":
                both_read.wait()

    threads = [threading.Thread(target=work, args=args) for args in (("a", first_stop), ("b", together.stop))]
    for thread in threads:
        thread.start()
    both_read.wait()
    produce(address, range(300))
    first_stop.set()
    threads[0].join()
    produce(address, range(300, 600))
    threads[1].join()
    assert len(together.seen) == 600 == len(set(together.seen))
    assert committed_sum(address) == 600


def test_listeners_run_together_and_end_together_on_a_signal(address: str) -> None:
    produce(address, range(30))
    orders, audits = Until(30), Until(30)

    @bus.listener("orders", group_id="billing", workers=2)
    def bill(record: ConsumerRecord) -> None:
        orders(record.value)
        end_when_all_is_seen()

    @bus.listener(group_id="audit", pattern="ord.*", order="none")
    async def audit(record: ConsumerRecord) -> None:
        audits(record.value)
        end_when_all_is_seen()

    def end_when_all_is_seen() -> None:
        if orders.stop.is_set() and audits.stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    summaries = bus.run_listeners(address, auto_offset_reset="earliest")
    assert {name.rpartition(".")[2]: summary.handled for name, summary in summaries.items()} == {
        "bill": 30,
        "audit": 30,
    }
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_listeners_that_hang(address: str, caplog: pytest.LogCaptureFixture) -> None:
    produce(address, range(3))
    have_begun = threading.Barrier(2, timeout=30)
    may_end = threading.Event()

    def hang() -> None:
        if have_begun.wait() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)  # another one: two of a kind that wait are one
        may_end.wait(50)

    @bus.listener("orders", group_id="billing", workers=1)
    def bill(record: ConsumerRecord) -> None:
        hang()

    @bus.listener("orders", group_id="audit", workers=1)
    def audit(record: ConsumerRecord) -> None:
        hang()

    summaries = bus.run_listeners(address, [bill, audit], auto_offset_reset="earliest")
    may_end.set()
    assert [(summary.handled, summary.abandoned) for summary in summaries.values()] == [(0, 1), (0, 1)]
    assert all(summary.duration_ms < 20_000 for summary in summaries.values()), "it waits for 30 s otherwise"
    assert ": all listeners end at once" in caplog.text
    assert committed_sum(address) == 0


def test_a_listener_that_fails_ends_the_others_and_its_error_is_raised(address: str) -> None:
    produce(address, range(3))

    @bus.listener("orders", group_id="billing")
    def bill(record: ConsumerRecord) -> None:
        raise ValueError("broke")

    @bus.listener("orders", group_id="audit")
    def audit(record: ConsumerRecord) -> None:
        pass

    with pytest.raises(RecordFailed, match="broke"):
        bus.run_listeners(address, auto_offset_reset="earliest")
    assert committed_sum(address) == 0


def test_a_consumer_without_a_group_cannot_run(address: str) -> None:
    with Consumer(address) as consumer, pytest.raises(BusError, match="INVALID_GROUP_ID"):
        consumer.run(lambda record: None)


def test_the_program_of_the_guide_bills_what_it_can_and_puts_the_rest_aside(address: str) -> None:
    with Producer(address) as producer:
        for number in range(12):
            producer.send("orders", b'{"amount": %d}' % (number - 1), b"customer %d" % (number % 3))
    program = Path(__file__).parents[3] / "docs" / "examples" / "process_orders.py"
    command = [sys.executable, str(program), address, "10"]
    done = subprocess.run(command, cwd=program.parents[2], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *bills, summary = done.stdout.splitlines()
    assert summary == "10 billed, 2 in orders.dlq"
    assert [bill for bill in bills if bill.startswith("customer 2")] == [f"customer 2 pays {n}" for n in (1, 4, 7, 10)]


@pytest.mark.parametrize("batch", ["list", "arrow"])
def test_batches_of_a_broker_hold_each_record_once_and_are_committed(address: str, batch: str) -> None:
    produce(address, range(200))
    until = Until(200)

    def handler(content: Any) -> None:
        for value in content.column("value").to_pylist() if batch == "arrow" else [one.value for one in content]:
            until(value)

    summary = run(address, handler, until.stop, batch=batch)
    assert (summary.handled, len(set(until.seen)), committed_sum(address)) == (200, 200, 200)


@pytest.mark.parametrize(("configs", "rows_max"), [({"max_poll_records": 7}, 7), ({}, None)])
def test_tables_have_as_many_rows_as_a_poll_may_give_where_that_is_set(
    address: str, configs: dict[str, Any], rows_max: int | None
) -> None:
    with Producer(address) as producer:
        batch = pa.table({"value": pa.array([b"v"] * 600, pa.binary())})
        producer.send_batch("orders", batch, partition=0).result(50)
    stop, sizes = threading.Event(), list[int]()

    def handler(table: pa.Table) -> None:
        sizes.append(table.num_rows)
        if sum(sizes) == 600:
            stop.set()

    run(address, handler, stop, batch="arrow", **configs)
    assert max(sizes) == rows_max or (rows_max is None and max(sizes) > 500)


def test_tables_and_deserializers_are_refused_together(address: str) -> None:
    with pytest.raises(BusError, match="batch='arrow': expected no deserializers beside it"):
        run(address, lambda table: None, threading.Event(), batch="arrow", value_deserializer=json.loads)


def test_consumers_of_one_run_share_the_partitions_of_their_group_and_end_together(address: str) -> None:
    produce(address, range(300))
    seen: set[bytes | None] = set()  # a record may come again when its partition goes to another consumer
    stop = threading.Event()

    def handler(record: ConsumerRecord, consumer: bus.RunningConsumer) -> None:
        assert TopicPartition("orders", record.partition) in consumer.assignment()
        seen.add(record.value)
        if len(seen) == 300:
            stop.set()

    summary = run(address, handler, stop, concurrency=3)
    assert summary.handled >= 300
    assert sum(summary.committed.values()) == 300 == committed_sum(address)
    with Admin(address) as admin:
        assert not admin.describe_groups(["billing"])["billing"].members


def test_a_run_of_partitions_reads_these_alone_and_commits_for_the_group(address: str) -> None:
    with Producer(address) as producer:
        for number in range(9):
            producer.send("orders", b"%d" % number, partition=number % 3)
    until = Until(6)
    summary = run(address, lambda record: until(record.partition), until.stop, partitions=[0, 2], concurrency=2)
    assert sorted(until.seen) == [0, 0, 0, 2, 2, 2]
    assert summary.committed == {TopicPartition("orders", 0): 3, TopicPartition("orders", 2): 3}
    assert committed_sum(address) == 6


def test_more_consumers_than_partitions_to_share_out_are_refused(address: str) -> None:
    with pytest.raises(BusError, match="expected at most as many consumers as partitions, 1, found 2"):
        run(address, print, threading.Event(), partitions=[1], concurrency=2)


def test_a_listener_of_partitions_takes_batches(address: str) -> None:
    produce(address, range(60))
    seen: list[ConsumerRecord] = []
    stop = threading.Event()

    @bus.listener("orders", group_id="parts", partitions=[0], batch="list", auto_offset_reset="earliest")
    def take(records: list[ConsumerRecord]) -> None:
        seen.extend(records)
        stop.set()

    (summary,) = bus.run_listeners(address, stop=stop).values()
    assert {record.partition for record in seen} == {0}
    assert summary.handled == len(seen)
