"""A program's own code that comes while a client is at work: it is served, queued or refused by name, and never hangs.

A signal handler and a finalizer come between any two steps. Here they come at a step that has the lock: the clock,
which the engine of a producer asks there, raises the signal, or lets go of the object.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bus import BusError, Consumer, ErrorCode, Producer, TopicPartition
from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.future import BatchFuture
from bus.platform.reentry import CalledInside, drain, is_inside
from tests.support.fake_broker import FakeBroker, Refuse

WAIT_S = 20.0
T0 = TopicPartition("t", 0)


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[Producer]:
    broker.cluster.create("t")
    with Producer(broker.address, retry_backoff_ms=1, retry_backoff_max_ms=5) as made:
        made.send("t", b"warm").result(WAIT_S)
        yield made


def at_a_step_with_the_lock(producer: Producer, do: Callable[[], object]) -> Callable[[], object]:
    """Has `do` called, in this thread, when a step of the producer next looks at the clock. Returns what does such a
    step."""
    here = threading.get_ident()
    engine = producer._engine

    def clock() -> float:
        if threading.get_ident() == here and engine.lock.is_held_here():
            engine._clock = monotonic_ms
            do()
        return monotonic_ms()

    engine._clock = clock
    return lambda: producer.send("t", b"outer", partition=0)


@contextmanager
def handler_of(number: signal.Signals, do: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(number, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def forwarded(level: int, send: Callable[[str], object]) -> Iterator[list[Exception]]:
    """Yield the errors of a program's handler that sends each line of the bus."""
    met: list[Exception] = []

    class Forwarding(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                send(record.getMessage())
            except Exception as error:
                met.append(error)

    handler, bus = Forwarding(), logging.getLogger("bus")
    before = bus.level
    bus.addHandler(handler)
    bus.setLevel(level)
    try:
        yield met
    finally:
        bus.removeHandler(handler)
        bus.setLevel(before)


def values(broker: FakeBroker) -> list[bytes | None]:
    return broker.cluster.topics["t"].partitions[0].values()


# ---------------------------------------------------------------- logging


def test_handler_that_sends_each_line_of_the_same_producer_is_served(broker: FakeBroker, producer: Producer) -> None:
    broker.produce_script.extend([Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 4)
    with forwarded(logging.WARNING, lambda line: producer.send("t", line.encode())) as met:
        producer.send("t", b"slow").result(WAIT_S)
        drain(WAIT_S)
        producer.flush(WAIT_S)
    assert met == []
    assert any(b"is tried again" in (value or b"") for value in values(broker))


def test_handler_that_waits_for_its_line_holds_up_nothing_of_the_producer(
    broker: FakeBroker, producer: Producer
) -> None:
    """The lines of the thread that reads answers would wait for answers."""
    broker.produce_script.extend([Refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 4)
    with forwarded(logging.WARNING, lambda line: producer.send("t", line.encode()).result(WAIT_S)) as met:
        producer.send("t", b"slow").result(WAIT_S)
        drain(WAIT_S)
    assert met == []


def test_handler_that_sends_each_line_of_a_consumer_holds_up_nothing(broker: FakeBroker, producer: Producer) -> None:
    broker.cluster.create("other")
    with (
        forwarded(logging.DEBUG, lambda line: producer.send("t", line.encode()).result(WAIT_S)) as met,
        Consumer(broker.address, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(["other"])
        while not consumer.assignment():
            consumer.poll(100)
        consumer.commit()
        drain(WAIT_S)
    assert met == []
    assert any(b"assigned" in (value or b"") for value in values(broker))


# ---------------------------------------------------------------- signal handlers and finalizers


def test_send_from_a_signal_handler_that_interrupts_a_send_is_queued(broker: FakeBroker, producer: Producer) -> None:
    sent: list[Any] = []
    with handler_of(signal.SIGUSR1, lambda: sent.append(producer.send("t", b"inner", key=b"k", headers=[("h", b"1")]))):
        at_a_step_with_the_lock(producer, lambda: signal.raise_signal(signal.SIGUSR1))()
    assert sent[0].result(WAIT_S).topic == "t"
    producer.flush(WAIT_S)
    assert sorted(value or b"" for value in values(broker)) == [b"inner", b"outer", b"warm"]


def test_send_from_a_finalizer_that_interrupts_a_send_is_queued(broker: FakeBroker, producer: Producer) -> None:
    class Sends:
        def __del__(self) -> None:
            producer.send("t", b"inner")

    cycle: list[Any] = [Sends()]
    cycle.append(cycle)
    del cycle
    at_a_step_with_the_lock(producer, gc.collect)()
    producer.flush(WAIT_S)
    assert sorted(value or b"" for value in values(broker)) == [b"inner", b"outer", b"warm"]


def test_what_is_sent_so_belongs_to_the_flush_that_comes_next_and_to_the_close(
    broker: FakeBroker, producer: Producer
) -> None:
    at_a_step_with_the_lock(producer, lambda: producer.send("t", b"inner"))()
    producer.close(WAIT_S)
    assert b"inner" in values(broker)


def test_more_than_can_be_queued_so_is_refused_by_name(producer: Producer) -> None:
    met: list[BusError] = []

    def send_many() -> None:
        try:
            for _ in range(2_000):
                producer.send("t", b"inner")
        except BusError as error:
            met.append(error)

    at_a_step_with_the_lock(producer, send_many)()
    assert "signal handlers and finalizers" in str(met[0])
    producer.flush(WAIT_S)


def test_callback_that_is_added_so_is_called(producer: Producer) -> None:
    called = threading.Event()
    future = producer.send("t", b"a")
    future.result(WAIT_S)
    at_a_step_with_the_lock(producer, lambda: future.add_done_callback(lambda _: called.set()))()
    assert called.wait(WAIT_S)


CALLS_THAT_WAIT: list[Callable[[Producer], object]] = [
    lambda producer: producer.flush(),
    lambda producer: producer.close(),
    lambda producer: producer.send("t", b"x").result(),
    lambda producer: producer.send("unknown", b"x"),
    lambda producer: producer.partitions_for("unknown"),
]


@pytest.mark.parametrize("call", CALLS_THAT_WAIT)
def test_what_would_wait_for_itself_is_refused_by_name_and_the_producer_goes_on(
    producer: Producer, call: Callable[[Producer], object]
) -> None:
    met: list[BaseException] = []

    def come_back() -> None:
        try:
            call(producer)
        except BaseException as error:
            met.append(error)

    at_a_step_with_the_lock(producer, come_back)()
    assert [type(error) for error in met] == [CalledInside]
    assert "would wait for itself" in str(met[0])
    producer.send("t", b"after").result(WAIT_S)


@pytest.mark.parametrize("name", ["poll", "commit", "close", "unsubscribe"])
def test_consumer_refuses_by_name_what_would_wait_for_itself_and_goes_on(broker: FakeBroker, name: str) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(100)
        with consumer._fetcher.lock:
            consumer.wakeup()  # from anywhere
            with pytest.raises(CalledInside):
                getattr(consumer, name)()
        while not consumer.assignment():
            consumer.poll(100)


# ---------------------------------------------------------------- callbacks


def in_a_callback(broker: FakeBroker, producer: Producer, do: Callable[[Any], object]) -> Any:
    """Return what `do` raised or returned; it gets a future that is not done yet, of a record behind the callback's."""
    outcome: list[Any] = []
    told = threading.Event()

    def callback(_: object) -> None:
        try:
            outcome.append(do(producer.send("t", b"behind")))
        except BaseException as error:
            outcome.append(error)
        told.set()

    broker.gate.clear()  # one that is answered before it has a callback calls it here
    producer.send("t", b"first").add_done_callback(callback)
    broker.gate.set()
    assert told.wait(WAIT_S)
    return outcome[0]


@pytest.mark.parametrize("wait", ["result", "exception", "wait"])
def test_waiting_without_an_end_in_a_callback_of_the_same_producer_is_refused_by_name(
    broker: FakeBroker, producer: Producer, wait: str
) -> None:
    met = in_a_callback(broker, producer, lambda future: getattr(future, wait)())
    assert isinstance(met, BusError)
    assert "in a callback of the same producer" in str(met)
    producer.flush(WAIT_S)


def test_waiting_for_a_batch_in_a_callback_of_the_same_producer_is_refused_by_name(
    broker: FakeBroker, producer: Producer
) -> None:
    import pyarrow as pa

    def wait(_: object) -> object:
        future: BatchFuture = producer.send_batch("t", pa.table({"value": [b"x"]}))
        return future.result()

    assert "in a callback of the same producer" in str(in_a_callback(broker, producer, wait))


def test_waiting_with_an_end_in_a_callback_ends_by_it(broker: FakeBroker, producer: Producer) -> None:
    assert isinstance(in_a_callback(broker, producer, lambda future: future.result(0.01)), TimeoutError)


def test_callback_waits_for_no_memory_that_answers_behind_it_would_free(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, buffer_memory=2_048, batch_size=100, max_block_ms=3_600_000) as small:
        small.send("t", b"warm").result(WAIT_S)

        def fill(_: object) -> object:
            for _ in range(100):
                small.send("t", b"x" * 400)
            return None

        assert "callback of this producer" in str(in_a_callback(broker, small, fill))


# ---------------------------------------------------------------- all of a program's code


class Witness:
    """All that a program can give to a client; notes where it was called under a lock of ours."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.inside: set[str] = set()

    def note(self, name: str) -> None:
        self.called.add(name)
        if is_inside():
            self.inside.add(name)

    def on_send(self, record: Any) -> Any:
        self.note("on_send")
        return record

    def on_acknowledgement(self, metadata: Any, error: Exception | None) -> None:
        self.note("on_acknowledgement")

    def on_consume(self, records: list[Any]) -> list[Any]:
        self.note("on_consume")
        return records

    def on_commit(self, offsets: Any) -> None:
        self.note("on_commit")

    def close(self) -> None:
        self.note("close")

    def serialize(self, *arguments: Any) -> Any:
        self.note("serialize")
        return arguments[-1]

    def deserialize(self, *arguments: Any) -> Any:
        self.note("deserialize")
        return arguments[-1]

    def partition(self, *arguments: Any) -> int:
        self.note("partition")
        return 0

    def by_name(self, name: str) -> Callable[..., None]:
        return lambda *_: self.note(name)


def test_no_code_of_a_program_is_called_under_a_lock_of_ours(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    witness = Witness()
    with Producer(
        broker.address,
        interceptors=[witness],
        key_serializer=witness.serialize,
        value_serializer=witness.serialize,
        partitioner=witness.partition,
        linger_ms=0,
    ) as producer:
        for number in range(3):
            producer.send("t", b"%d" % number).add_done_callback(witness.by_name("callback"))
        producer.flush(WAIT_S)
    with Consumer(
        broker.address,
        group_id="g",
        auto_offset_reset="earliest",
        interceptors=[witness],
        key_deserializer=witness.deserialize,
        value_deserializer=witness.deserialize,
    ) as consumer:
        on = {name: witness.by_name(name) for name in ("on_assigned", "on_revoked", "on_lost")}
        consumer.subscribe(["t"], **on)
        while not consumer.poll(100):
            pass
        consumer.commit(asynchronous=True, callback=witness.by_name("commit_callback"))
        while "commit_callback" not in witness.called:
            consumer.poll(100)
        consumer.unsubscribe()
    assert witness.inside == set()
    assert witness.called >= {
        "on_send", "on_acknowledgement", "on_consume", "on_commit", "close", "serialize", "deserialize", "partition",
        "callback", "on_assigned", "on_revoked", "commit_callback",
    }  # fmt: skip
