"""Runs with a transactional id and a broker: each record of the input is counted once, in the output, in the dead
letters and in the offsets of the group, whatever fails on the way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bus
from bus import (
    Admin,
    BusError,
    Consumer,
    ConsumerRecord,
    ErrorCode,
    NewTopic,
    Output,
    Producer,
    RecordFailed,
    RunSummary,
    TopicPartition,
    serializers,
)
from bus.processing import listeners
from bus.processing import transactional_output as transactions
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.crashing_processor import STEPS
from tests.support.member_processes import REPOSITORY, wait_until

GROUP: dict[str, Any] = {"group_id": "billing", "auto_offset_reset": "earliest"}
ID = {"transactional_id": "billing-0"}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    config = BrokerConfig(
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=2,
        transaction_state_log_num_partitions=2,
        auto_create_topics_enable=False,
        transaction_staged_max_bytes=1 << 20,
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        at = f"127.0.0.1:{broker.port}"
        with Admin(at) as admin:
            admin.create_topics([NewTopic("orders", partitions=2), NewTopic("doubles", partitions=2)])
        yield at


def produce(address: str, numbers: range) -> None:
    with Producer(address) as producer:
        for number in numbers:
            producer.send("orders", b"%d" % number, b"%d" % (number % 10))


def values_of(address: str, topic: str = "doubles") -> list[int]:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = sorted(consumer.partitions_for(topic))
        consumer.assign(partitions)
        count = sum(consumer.end_offsets(partitions).values())
        found: list[int] = []
        while len(found) < count:
            found += [int((record.value or b"")[:20]) for record in consumer.poll(20_000)]
        return found


def committed_sum(address: str, group_id: str = "billing", *, partitions: int = 2) -> int:
    with Consumer(address, **{**GROUP, "group_id": group_id}) as consumer:
        return sum_of_committed(consumer, partitions)


def sum_of_committed(consumer: Consumer, partitions: int) -> int:
    committed = consumer.committed([TopicPartition("orders", number) for number in range(partitions)])
    return sum(each.offset for each in committed.values() if each is not None)


def double(record: ConsumerRecord, output: Output) -> None:
    number = int(record.value or b"")
    output.send("doubles", b"%d" % (2 * number), record.key)


class Counted:
    """A handler that ends its run when it has returned so often."""

    def __init__(self, handler: Callable[[ConsumerRecord, Output], None], count: int) -> None:
        self.stop = threading.Event()
        self.calls = 0
        self._handler = handler
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, record: ConsumerRecord, output: Output) -> None:
        with self._lock:
            self.calls += 1
        self._handler(record, output)
        self.count_down()

    def count_down(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.stop.set()


def stop_when_committed(address: str, count: int) -> threading.Event:
    """The run ends also if they are not committed in time."""
    stop = threading.Event()

    def watch() -> None:
        try:
            with Consumer(address, **GROUP) as consumer:
                wait_until(lambda: sum_of_committed(consumer, 2) == count, f"{count} are committed", 180)
        finally:
            stop.set()

    threading.Thread(target=watch).start()
    return stop


def run(address: str, handler: Callable[..., Any], stop: threading.Event | None, **options: Any) -> RunSummary:
    with Consumer(address, **GROUP, max_poll_records=options.pop("max_poll_records", 50)) as consumer:
        consumer.subscribe(["orders"])
        return consumer.run(handler, stop=stop, **{**ID, **options})


@pytest.mark.parametrize("ack", ["record", "batch", "count", "time"])
def test_output_and_offsets_are_committed_together(address: str, ack: str) -> None:
    produce(address, range(300))
    counted = Counted(double, 300)
    summary = run(address, counted, counted.stop, ack=ack, order="key")
    assert (summary.handled, summary.ended_by) == (300, "stop")
    assert sorted(values_of(address)) == [2 * number for number in range(300)]
    assert sum(summary.committed.values()) == committed_sum(address) == 300
    with Admin(address) as admin:
        found = admin.describe_transactions(["billing-0"])["billing-0"]
        assert found.state == "CompleteCommit"


def test_a_keys_output_has_the_order_of_its_input(address: str) -> None:
    produce(address, range(200))
    counted = Counted(double, 200)
    run(address, counted, counted.stop, order="key", workers=16, max_poll_records=20)
    found = values_of(address)
    for key in range(10):
        of_key = [value for value in found if value // 2 % 10 == key]
        assert of_key == sorted(of_key)


def test_coroutines_have_an_output_with_the_serializers_that_were_given(address: str) -> None:
    produce(address, range(50))
    done = Counted(double, 50)

    async def handler(record: ConsumerRecord, output: Output) -> None:
        output.send("doubles", 2 * int(record.value or b""))
        done.count_down()

    run(address, handler, done.stop, producer_configs={"value_serializer": serializers.json, "linger_ms": 0})
    assert sorted(values_of(address)) == [2 * number for number in range(50)]


def test_what_a_failed_attempt_sent_is_nowhere_and_its_letter_comes_with_the_offset(address: str) -> None:
    produce(address, range(100))
    attempts: Counter[int] = Counter()
    counted = Counted(double, 100)

    def handler(record: ConsumerRecord, output: Output) -> None:
        number = int(record.value or b"")
        double(record, output)
        attempts[number] += 1
        if number % 10 == 3 and attempts[number] < 3:
            raise ValueError("not yet")
        if number % 10 == 7:
            if attempts[number] == 3:
                counted.count_down()
            raise ValueError("never")
        counted.count_down()

    summary = run(address, handler, counted.stop, on_error="dead_letter", retries=2, retry_backoff_ms=1)
    assert (summary.handled, summary.dead_lettered) == (90, 10)
    assert sorted(values_of(address)) == [2 * number for number in range(100) if number % 10 != 7]
    assert sorted(values_of(address, "orders.dlq")) == list(range(7, 100, 10))
    assert committed_sum(address) == 100


@pytest.mark.parametrize(
    ("on_error", "letters"), [("skip", []), ("dead_letter", [13]), (lambda *failed: "dead_letter", [13])]
)
def test_output_that_its_topic_refuses_is_found_out_among_all_others(
    address: str, on_error: Any, letters: list[int]
) -> None:
    produce(address, range(40))
    with Admin(address) as admin:
        admin.create_topics([NewTopic("small", configs={"max.message.bytes": 1_000})])

    def handler(record: ConsumerRecord, output: Output) -> None:
        double(record, output)
        output.send("small", b"1" * (2_000 if record.value == b"13" else 1))

    counted = Counted(handler, 40)
    summary = run(address, counted, counted.stop, on_error=on_error)
    assert counted.calls == 40, "no other handler is called again"
    assert (summary.handled, summary.skipped + summary.dead_lettered) == (39, 1)
    assert sorted(values_of(address)) == [2 * number for number in range(40) if number != 13]
    assert values_of(address, "small") == [1] * 39
    assert committed_sum(address) == 40
    if letters:
        assert values_of(address, "orders.dlq") == letters


def test_output_that_its_topic_refuses_stops_in_front_of_its_record(address: str) -> None:
    produce(address, range(40))
    with Admin(address) as admin:
        admin.create_topics([NewTopic("small", configs={"max.message.bytes": 1_000})])

    def handler(record: ConsumerRecord, output: Output) -> None:
        output.send("small" if record.value == b"13" else "doubles", b"1" * 2_000)

    with pytest.raises(RecordFailed) as raised:
        run(address, handler, None, on_error="stop", producer_configs={"linger_ms": 0})
    assert raised.value.record.value == b"13"
    assert isinstance(raised.value.__cause__, BusError)
    assert raised.value.__cause__.code is ErrorCode.MESSAGE_TOO_LARGE
    counted = Counted(double, 40 - committed_sum(address))
    run(address, counted, counted.stop)
    assert 26 in values_of(address)


def create_again(address: str, topic: str, partitions: int) -> None:
    with Admin(address) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, partitions=partitions)])


def test_output_topic_that_is_created_again_with_fewer_partitions_stops_what_has_no_place_in_it(address: str) -> None:
    produce(address, range(40))
    handled: list[int] = []

    def handler(record: ConsumerRecord, output: Output) -> None:
        number = int(record.value or b"")
        output.send("doubles", b"%d" % (2 * number), partition=number % 2)
        handled.append(number)
        if len(handled) == 40:  # nothing is committed yet
            create_again(address, "doubles", 1)

    with pytest.raises(RecordFailed, match="created again with fewer partitions, after the handler returned") as raised:
        run(address, handler, None, workers=1, ack="count", ack_count=40)
    assert int(raised.value.record.value or b"") % 2 == 1
    counted = Counted(double, 40 - committed_sum(address))
    run(address, counted, counted.stop)
    assert committed_sum(address) == 40


def test_input_topic_that_is_created_again_is_read_from_its_beginning(address: str) -> None:
    produce(address, range(40))
    seen: Counter[int] = Counter()
    stop = threading.Event()

    def handler(record: ConsumerRecord, output: Output) -> None:
        double(record, output)
        seen[int(record.value or b"")] += 1
        if sum(seen[number] for number in range(100, 110)) == 10:
            stop.set()

    def replace_input() -> None:
        wait_until(lambda: committed_sum(address) == 40, "the first topic is read")
        create_again(address, "orders", 2)
        produce(address, range(100, 110))

    replacing = threading.Thread(target=replace_input)
    replacing.start()
    run(address, handler, stop)
    replacing.join()
    assert seen == Counter([*range(40), *range(100, 110)])
    assert sorted(values_of(address)) == [2 * number for number in (*range(40), *range(100, 110))]
    assert committed_sum(address) == 10


def test_offsets_of_a_partition_that_is_gone_hold_up_no_run(address: str) -> None:
    """Its input is created again with fewer partitions before the offsets are committed."""
    produce(address, range(40))
    handled: list[int] = []
    stop = threading.Event()

    def handler(record: ConsumerRecord, output: Output) -> None:
        double(record, output)
        handled.append(int(record.value or b""))
        if len(handled) == 40:
            create_again(address, "orders", 1)
            produce(address, range(100, 140))

    def stop_when_committed() -> None:
        try:
            wait_until(lambda: 139 in handled and committed_sum(address, partitions=1) == 40, "all is committed", 30)
        finally:
            stop.set()

    watching = threading.Thread(target=stop_when_committed)
    watching.start()
    with Consumer(address, **GROUP, metadata_max_age_ms=500) as consumer:
        consumer.subscribe(["orders"])
        summary = consumer.run(handler, stop=stop, **ID, workers=1, ack="count", ack_count=40)
    watching.join()
    assert (summary.ended_by, committed_sum(address, partitions=1)) == ("stop", 40)


def test_topic_that_is_not_there_fails_the_handler(address: str) -> None:
    produce(address, range(1))
    with pytest.raises(RecordFailed, match="nowhere"):
        run(
            address,
            lambda record, output: output.send("nowhere", b""),
            None,
            producer_configs={"max_block_ms": 300},
        )
    with pytest.raises(RecordFailed, match="expected a partition below 2, found 7"):
        run(address, lambda record, output: output.send("doubles", b"", partition=7), None)


def test_letter_that_is_too_large_for_its_topic_gets_smaller(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topics([NewTopic("orders.dlq", partitions=2, configs={"max.message.bytes": 600})])
        producer.send("orders", b"1" * 5_000)
        producer.send("orders", b"2")

    def refuse(record: ConsumerRecord, output: Output) -> None:
        if len(record.value or b"") > 1:
            raise ValueError("too long")
        double(record, output)

    summary = run(address, refuse, stop_when_committed(address, 2), on_error="dead_letter")
    assert (summary.handled, summary.dead_lettered) == (1, 1)
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders.dlq", number) for number in range(2)])
        (letter,) = consumer.poll(20_000)
    assert (letter.value, dict(letter.headers)["bus.dlq.left_out_bytes"]) == (None, b"5000")


def test_more_output_than_a_partition_stages_goes_in_several_transactions(address: str) -> None:
    """The broker of these tests stages 1 MiB; a run asks for 16 MiB at first."""
    produce(address, range(40))

    def handler(record: ConsumerRecord, output: Output) -> None:
        output.send("doubles", b"%020d" % int(record.value or b"") + b"x" * 100_000, partition=0)

    counted = Counted(handler, 40)
    run(address, counted, stop_when_committed(address, 40))
    assert counted.calls == 40
    assert sorted(values_of(address)) == list(range(40))


def test_run_goes_on_after_an_operator_aborted_its_transaction(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(address, range(100))
    aborted: list[str] = []

    class Aborted(Producer):
        def send_offsets_to_transaction(self, *args: Any) -> None:
            super().send_offsets_to_transaction(*args)
            if len(aborted) < 2:
                aborted.append("")
                with Admin(address) as admin:
                    admin.abort_transaction("billing-0")

    monkeypatch.setattr(transactions, "Producer", Aborted)
    counted = Counted(double, 100)
    run(address, counted, stop_when_committed(address, 100))
    assert len(aborted) == 2
    assert counted.calls == 100
    assert sorted(values_of(address)) == [2 * number for number in range(100)]


def test_second_instance_with_the_id_ends_the_first_one(address: str) -> None:
    produce(address, range(10))
    fenced: list[ConsumerRecord] = []
    with Producer(address, transactional_id="billing-0") as other:

        def handler(record: ConsumerRecord, output: Output) -> None:
            if not fenced:
                fenced.append(record)
                other.init_transactions()
            double(record, output)

        with pytest.raises(BusError) as raised:
            run(address, handler, None, workers=1)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED
    counted = Counted(double, 10 - committed_sum(address))
    run(address, counted, counted.stop)
    assert sorted(values_of(address)) == [2 * number for number in range(10)]


def test_members_that_come_and_go_count_each_record_once(address: str) -> None:
    produce(address, range(200))
    stops = [threading.Event() for _ in range(4)]
    errors: list[BaseException] = []

    def slowly(record: ConsumerRecord, output: Output) -> None:
        double(record, output)
        threading.Event().wait(0.005)

    def member(number: int) -> None:
        try:
            run(address, slowly, stops[number], transactional_id=f"billing-{number}", max_poll_records=10, workers=2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=member, args=(number,)) for number in range(4)]
    threads[0].start()
    for number in range(1, 4):
        wait_until(lambda number=number: len(values_of(address)) >= 20 * number, "some are there")  # type: ignore[misc]
        produce(address, range(200 * number, 200 * (number + 1)))
        threads[number].start()
        stops[number - 1].set()
    wait_until(lambda: committed_sum(address) == 800, "all are committed")
    stops[3].set()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert sorted(values_of(address)) == [2 * number for number in range(800)]


@pytest.mark.parametrize("step", ["begin_transaction", "send_offsets_to_transaction", "commit_transaction"])
def test_member_thrown_out_in_the_middle_of_a_transaction_counts_nothing_twice(
    address: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before this step of its first transaction its partitions go to another member, which goes on where it may."""
    produce(address, range(100))
    stops = [threading.Event(), threading.Event()]
    others: list[threading.Thread] = []

    class Overtaken(Producer): ...

    def overtake(producer: Producer, *args: Any) -> Any:
        if not others:
            monkeypatch.setattr(transactions, "Producer", Producer)
            with Admin(address) as admin:
                admin.remove_members("billing")
                options: dict[str, Any] = {"transactional_id": "billing-1", "max_poll_records": 10}
                others.append(threading.Thread(target=run, args=(address, double, stops[1]), kwargs=options))
                others[0].start()
                # It waits for the outcome of what is pending, else it takes the work over.
                is_pending = step == "commit_transaction"
                wait_until(
                    lambda: (
                        (is_pending and bool(admin.describe_groups(["billing"])["billing"].members))
                        or committed_sum(address) == 100
                    ),
                    "the other has the partitions",
                )
        return getattr(Producer, step)(producer, *args)

    setattr(Overtaken, step, overtake)
    monkeypatch.setattr(transactions, "Producer", Overtaken)
    first = threading.Thread(target=run, args=(address, double, stops[0]), kwargs={"max_poll_records": 30})
    first.start()
    wait_until(lambda: bool(others) and committed_sum(address) == 100, "all are committed")
    for stop, thread in zip(stops, [first, *others], strict=True):
        stop.set()
        thread.join(30)
    assert sorted(values_of(address)) == [2 * number for number in range(100)]


def test_offsets_are_committed_in_the_name_of_a_member_that_owns_them_alone(address: str) -> None:
    with Consumer(address, **GROUP) as consumer:
        consumer.subscribe(["orders"])
        member = consumer._needed_group("test")
        mine, other = TopicPartition("orders", 0), TopicPartition("elsewhere", 0)
        with pytest.raises(BusError) as raised:
            member.transaction_stamp([mine])
        assert raised.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
        assert member.transaction_stamp([mine]) == consumer.group_metadata()
        with pytest.raises(BusError, match="elsewhere-0 is not assigned"):
            member.transaction_stamp([mine, other])


def test_killed_between_any_two_steps_each_record_is_counted_once(address: str) -> None:
    command = [sys.executable, "-m", "tests.support.crashing_processor", address]
    for number, step in enumerate(STEPS):
        produce(address, range(100 * number, 100 * (number + 1)))
        ended = subprocess.run([*command, step], cwd=REPOSITORY, timeout=100, capture_output=True, text=True)
        assert ended.returncode == -signal.SIGKILL, f"{step}: {ended.stderr}"
    count = 100 * len(STEPS)
    assert committed_sum(address, "doubling") < count
    with subprocess.Popen([*command, "none"], cwd=REPOSITORY) as last:
        try:
            wait_until(lambda: committed_sum(address, "doubling") == count, "all are committed")
        finally:
            last.terminate()
    assert sorted(values_of(address)) == [2 * number for number in range(count) if number % 10 != 7]
    assert sorted(values_of(address, "orders.dlq")) == list(range(7, count, 10))


def test_listeners_have_ids_of_their_own(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_listeners", [])
    produce(address, range(30))
    counted = Counted(double, 30)

    @bus.listener("orders", group_id="billing", transactional_id="billing-0", workers=4, order="key")
    def bill(record: ConsumerRecord, output: Output) -> None:
        counted(record, output)

    bus.run_listeners(address, auto_offset_reset="earliest", stop=counted.stop)
    assert sorted(values_of(address)) == [2 * number for number in range(30)]

    @bus.listener("orders", group_id="audit", transactional_id="billing-0")
    def audit(record: ConsumerRecord, output: Output) -> None: ...

    with pytest.raises(BusError, match=r"of its own for each listener, found 'billing-0' of .*bill and .*audit"):
        bus.run_listeners(address)
