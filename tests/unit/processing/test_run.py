"""The loop with its threads, on a consumer in memory: commits, rebalances, failures, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from bus.client.consumer.records import RecordDeserializationError
from bus.client.values import ConsumerRecord
from bus.errors import BusError, ErrorCode
from bus.processing import Acknowledgement, Output, ProcessingRun, RecordFailed, RunSummary, parse_settings
from bus.processing.running_consumer import RunningConsumer
from bus.processing.transactional_output import OutputTransactions
from bus.processing.work import Work
from tests.support.processing import PATIENCE_S, FakeConsumer, partition, record
from tests.support.processing_transactions import FakeMember, FakeProducer

P0, P1 = partition(0), partition(1)
_FOR_GOOD_MS = 86_400_000  # a run that waited so long for a worker would not end within the time of its test


class DeadLetterBox:
    def __init__(self, error: Exception | None = None) -> None:
        self.letters: list[tuple[int, str]] = []
        self.error = error

    def send(self, work: Work, error: BaseException) -> None:
        if self.error is not None:
            raise self.error
        self.letters += [(record.offset, str(error)) for record in work.records]


def run(
    consumer: FakeConsumer, handler: Callable[..., Any], *, box: DeadLetterBox | None = None, **options: Any
) -> RunSummary:
    """Run until the script of the consumer is over and `handler` has seen all."""
    stop = threading.Event()
    settings = parse_settings({"workers": 4, "drain_timeout_ms": 10_000, **options})
    sink = (box or DeadLetterBox()).send
    consumer.script.append(lambda: stop.set())
    return ProcessingRun(consumer, consumer, handler, settings, sink, stop).run()


def waiting_for(consumer: FakeConsumer, is_there: Callable[[], bool]) -> Callable[[], None]:
    """A step of the script: polls go on, with nothing, until `is_there`."""

    def step() -> None:
        if not is_there():
            consumer.script.insert(0, step)
            consumer._awoken.wait(0.01)

    return step


def never(consumer: FakeConsumer) -> Callable[[], None]:
    """Return a script step for a run that something else ends."""
    return waiting_for(consumer, lambda: False)


def handles_all(consumer: FakeConsumer, count: int) -> tuple[list[int], Callable[[ConsumerRecord], None]]:
    seen: list[int] = []
    consumer.script.append(waiting_for(consumer, lambda: len(seen) == count))
    return seen, lambda record: seen.append(record.offset)


def test_every_record_is_handled_and_committed_and_the_group_is_left() -> None:
    consumer = FakeConsumer([[record(0), record(1), record(0, 1)], [record(2)]])
    seen, handler = handles_all(consumer, 4)
    summary = run(consumer, handler)
    assert sorted(seen) == [0, 0, 1, 2]
    assert consumer.committed == {P0: 3, P1: 1}
    assert consumer.is_closed
    assert (summary.handled, summary.committed, summary.ended_by) == (4, {P0: 3, P1: 1}, "stop")


def test_workers_handle_partitions_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=10)
    consumer = FakeConsumer([[record(0), record(0, 1)]])
    seen, note = handles_all(consumer, 2)

    def handler(record: ConsumerRecord) -> None:
        together.wait()
        note(record)

    run(consumer, handler)
    assert len(seen) == 2


def test_coroutines_run_on_one_loop_at_the_same_time_and_no_more_of_them_than_workers() -> None:
    consumer = FakeConsumer([[record(n) for n in range(6)]])
    seen, note = handles_all(consumer, 6)
    running: list[int] = []
    loops = set()
    most = 0

    async def handler(record: ConsumerRecord) -> None:
        nonlocal most
        loops.add(asyncio.get_running_loop())
        running.append(record.offset)
        most = max(most, len(running))
        for _ in range(3):
            await asyncio.sleep(0)
        running.remove(record.offset)
        note(record)

    run(consumer, handler, workers=3, order="none")
    assert sorted(seen) == list(range(6))
    assert (most, len(loops)) == (3, 1)


def test_a_commit_by_record_does_not_wait_for_the_next_poll_to_end() -> None:
    consumer = FakeConsumer([[record(0)]])
    consumer.script.append(consumer.wait_for_wakeup)
    run(consumer, lambda record: None, ack="record")
    assert consumer.commits == [{P0: 1}]


def test_manual_acknowledgements_may_come_later_from_another_thread() -> None:
    consumer = FakeConsumer([[record(0), record(1)]])
    kept: list[Acknowledgement] = []
    consumer.script += [
        waiting_for(consumer, lambda: len(kept) == 2),
        lambda: threading.Thread(target=kept[1].acknowledge).start(),
        lambda: consumer.commits.append({}),
        lambda: threading.Thread(target=kept[0].acknowledge).start(),
        waiting_for(consumer, lambda: consumer.committed == {P0: 2}),
    ]
    run(consumer, lambda record, acknowledgement: kept.append(acknowledgement), ack="manual_immediate")
    assert consumer.commits == [{}, {P0: 2}] or consumer.commits == [{}, {P0: 1}, {P0: 2}]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_stops_commits_what_is_before_it_and_raises_its_cause(is_async: bool) -> None:
    consumer = FakeConsumer([[record(0), record(1), record(2)]])

    def fail_at_one(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise ValueError("broken")

    async def fail_later(record: ConsumerRecord) -> None:
        fail_at_one(record)

    consumer.script.append(never(consumer))
    with pytest.raises(RecordFailed, match=r"orders-0 offset 1: .* ValueError: broken") as raised:
        run(consumer, fail_later if is_async else fail_at_one)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.summary.ended_by == "error"
    assert consumer.committed == {P0: 1}
    assert consumer.seeks == [(P0, 1)], "whoever reads on begins with the record that failed"
    assert consumer.is_closed


def test_a_record_is_tried_again_until_it_works() -> None:
    consumer = FakeConsumer([[record(0), record(1)]])
    seen, note = handles_all(consumer, 2)
    attempts: list[int] = []

    def handler(record: ConsumerRecord) -> None:
        attempts.append(record.offset)
        if attempts.count(0) < 3:
            raise ValueError("not yet")
        note(record)

    summary = run(consumer, handler, on_error="retry", retry_backoff_ms=1)
    assert attempts == [0, 0, 0, 1]
    assert seen == [0, 1]
    assert (summary.handled, summary.retried) == (2, 2)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_dead_letter_is_sent_and_the_rest_goes_on(is_async: bool) -> None:
    consumer = FakeConsumer([[record(0), record(1), record(2)]])
    seen, note = handles_all(consumer, 2)
    box = DeadLetterBox()

    def handler(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise ValueError("poison")
        note(record)

    async def later(record: ConsumerRecord) -> None:
        handler(record)

    summary = run(consumer, later if is_async else handler, box=box, on_error="dead_letter")
    assert box.letters == [(1, "poison")]
    assert seen == [0, 2]
    assert consumer.committed == {P0: 3}
    assert (summary.handled, summary.dead_lettered) == (2, 1)


def test_a_dead_letter_that_fails_stops_before_its_record() -> None:
    consumer = FakeConsumer([[record(0), record(1)]])
    box = DeadLetterBox(BusError(ErrorCode.REQUEST_TIMED_OUT, "no broker"))

    def handler(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise ValueError("poison")

    consumer.script.append(never(consumer))
    with pytest.raises(RecordFailed, match="no broker"):
        run(consumer, handler, box=box, on_error="dead_letter")
    assert consumer.committed == {P0: 1}


def undeserializable(offset: int) -> RecordDeserializationError:
    return RecordDeserializationError(record(offset), "value", ValueError("no JSON"))


def test_what_cannot_be_deserialized_becomes_a_dead_letter_in_its_place() -> None:
    consumer = FakeConsumer([[record(0)], undeserializable(1), [record(2)]])
    seen, handler = handles_all(consumer, 2)
    box = DeadLetterBox()
    run(consumer, handler, box=box, on_error="dead_letter")
    assert seen == [0, 2]
    assert [offset for offset, _ in box.letters] == [1]
    assert (P0, 2) in consumer.seeks
    assert consumer.committed == {P0: 3}


def test_what_cannot_be_deserialized_stops_if_nothing_else_is_said() -> None:
    consumer = FakeConsumer([[record(0)], undeserializable(1)])
    consumer.script.append(never(consumer))
    with pytest.raises(RecordFailed, match="offset 1"):
        run(consumer, lambda record: None)
    assert consumer.committed == {P0: 1}
    assert consumer.seeks[-1] == (P0, 1)


def test_a_revocation_waits_for_work_in_flight_and_commits_it_before_the_partition_is_gone() -> None:
    consumer = FakeConsumer([[record(0), record(1), record(0, 1)]])
    began, may_end = threading.Event(), threading.Event()
    of_p1 = threading.Event()

    def handler(record: ConsumerRecord) -> None:
        if record.partition == 0:
            began.set()
            assert may_end.wait(PATIENCE_S)
        else:
            of_p1.set()

    def rebalance() -> None:
        assert began.wait(PATIENCE_S)
        threading.Timer(0.05, may_end.set).start()
        consumer.revoke(P0)
        assert consumer.committed[P0] == 1, "it was committed while it was ours, and no record more was begun"

    consumer.script += [rebalance, waiting_for(consumer, of_p1.is_set)]
    summary = run(consumer, handler)
    assert consumer.committed == {P0: 1, P1: 1}
    assert (summary.handled, summary.abandoned) == (2, 0)


def test_a_revocation_waits_no_longer_than_the_drain_timeout_and_commits_nothing_of_what_goes_on() -> None:
    consumer = FakeConsumer([[record(0)]])
    began, may_end = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)

    def rebalance() -> None:
        assert began.wait(PATIENCE_S)
        consumer.revoke(P0)
        may_end.set()

    consumer.script.append(rebalance)
    summary = run(consumer, handler, drain_timeout_ms=20)
    assert consumer.committed == {}
    assert (summary.handled, summary.abandoned) == (0, 1)


def test_of_lost_partitions_nothing_is_committed_and_nothing_is_waited_for() -> None:
    consumer = FakeConsumer([[record(0), record(0, 1)]])
    began, may_end = threading.Event(), threading.Event()
    of_p1 = threading.Event()

    def handler(record: ConsumerRecord) -> None:
        if record.partition == 1:
            of_p1.set()
            return
        began.set()
        assert may_end.wait(PATIENCE_S)

    def lose() -> None:
        assert began.wait(PATIENCE_S)
        consumer.lose(P0)
        may_end.set()

    consumer.script += [lose, waiting_for(consumer, of_p1.is_set)]
    run(consumer, handler)
    assert consumer.committed == {P1: 1}


@pytest.mark.parametrize(
    "code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_commit_that_the_group_has_no_time_for_is_put_off(code: ErrorCode) -> None:
    consumer = FakeConsumer([[record(0)]])
    consumer.commit_errors = [BusError(code, "later")]
    seen, handler = handles_all(consumer, 1)
    summary = run(consumer, handler, ack="record")
    assert (seen, consumer.commits, summary.committed) == ([0], [{P0: 1}], {P0: 1})


def test_a_commit_that_can_never_work_ends_the_run() -> None:
    consumer = FakeConsumer([[record(0)]])
    consumer.commit_errors = [BusError(ErrorCode.FENCED_INSTANCE_ID, "a younger twin")] * 2
    consumer.script.append(never(consumer))
    with pytest.raises(BusError, match="FENCED_INSTANCE_ID"):
        run(consumer, lambda record: None, ack="record")
    assert consumer.is_closed


def test_a_poll_that_fails_ends_the_run_after_an_orderly_end() -> None:
    consumer = FakeConsumer([[record(0)]])
    seen, handler = handles_all(consumer, 1)
    consumer.script.append(BusError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone"))
    with pytest.raises(BusError, match="OFFSET_OUT_OF_RANGE"):
        run(consumer, handler)
    assert (seen, consumer.committed, consumer.is_closed) == ([0], {P0: 1}, True)


def test_a_busy_partition_is_paused_and_resumed() -> None:
    consumer = FakeConsumer([[record(n) for n in range(4)]])
    may_go = threading.Event()
    _, note = handles_all(consumer, 4)

    def handler(record: ConsumerRecord) -> None:
        assert may_go.wait(PATIENCE_S)
        note(record)

    consumer.script.insert(1, lambda: may_go.set() if consumer.paused == {P0} else None)
    consumer.script.append(waiting_for(consumer, lambda: not consumer.paused))
    run(consumer, handler, queued_records_max=4)
    assert consumer.pauses == [("pause", [P0]), ("resume", [P0])]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_commits_leaves_and_puts_the_handlers_back(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    consumer = FakeConsumer([[record(0), record(1)]])
    began, may_end = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)

    def send_signal() -> None:
        assert began.wait(PATIENCE_S)
        os.kill(os.getpid(), number)
        threading.Timer(0.05, may_end.set).start()

    consumer.script += [send_signal, never(consumer)]
    summary = run(consumer, handler, workers=1)
    assert (summary.ended_by, summary.handled) == (number.name, 1)
    assert consumer.committed == {P0: 1}, "the record that was with a worker, and no other one"
    assert consumer.is_closed
    assert {each: signal.getsignal(each) for each in before} == before


def test_a_second_signal_waits_for_nobody_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    consumer = FakeConsumer([[record(0)]])
    began, may_end = threading.Event(), threading.Event()

    def handler(record: ConsumerRecord) -> None:
        began.set()
        may_end.wait(PATIENCE_S)

    def send_signals() -> None:
        assert began.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    consumer.script += [send_signals, never(consumer)]
    summary = run(consumer, handler, drain_timeout_ms=_FOR_GOOD_MS)
    may_end.set()
    assert (summary.handled, summary.abandoned) == (0, 1)
    assert consumer.committed == {}
    assert ": ending at once" in caplog.text
    assert "1 record still with workers, ended without waiting" in caplog.text


def test_hurry_beside_stop_waits_for_nobody() -> None:
    consumer = FakeConsumer([[record(0)]])
    began, may_end, stop, hurry = (threading.Event() for _ in range(4))

    def handler(record: ConsumerRecord) -> None:
        began.set()
        may_end.wait(PATIENCE_S)

    def end_at_once() -> None:
        assert began.wait(PATIENCE_S)
        stop.set()
        hurry.set()

    consumer.script += [end_at_once, never(consumer)]
    settings = parse_settings({"drain_timeout_ms": _FOR_GOOD_MS})
    summary = ProcessingRun(consumer, consumer, handler, settings, DeadLetterBox().send, stop, hurry).run()
    may_end.set()
    assert (summary.abandoned, summary.ended_by, consumer.committed) == (1, "stop", {})


class TimedConsumer(FakeConsumer):
    """Notes for how long each poll may wait."""

    def __init__(self, script: Iterable[Any] = ()) -> None:
        super().__init__(script)
        self.timeouts_ms: list[int] = []

    def poll(self, timeout_ms: int = 500) -> list[ConsumerRecord]:
        self.timeouts_ms.append(timeout_ms)
        return super().poll(timeout_ms)


@pytest.mark.parametrize("is_put_off", [False, True])
def test_polls_wait_though_the_time_of_a_commit_is_over(is_put_off: bool) -> None:
    """There is nothing to commit, or the coordinator is away."""
    consumer = TimedConsumer()
    now, seen, stop = [0], threading.Event(), threading.Event()

    def pass_time() -> None:
        now[0] = 1_000

    if is_put_off:
        consumer.commit_errors.append(BusError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "away"))
        consumer.script += [[record(0)], waiting_for(consumer, seen.is_set)]
    consumer.script += [pass_time, consumer.timeouts_ms.clear, lambda: None, stop.set]
    settings = parse_settings({"ack": "time", "ack_time_ms": 100})
    sink = DeadLetterBox().send
    ProcessingRun(consumer, consumer, lambda record: seen.set(), settings, sink, stop, clock=lambda: now[0]).run()
    assert consumer.timeouts_ms == [200, 200]


def test_workers_that_cannot_be_started_end_the_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    consumer = FakeConsumer()
    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError):
        run(consumer, lambda record: None)
    assert consumer.is_closed
    started[0].join(20)
    assert not started[0].is_alive()


@pytest.mark.parametrize(
    ("handler", "ack", "expected"),
    [
        (lambda record, acknowledgement: None, "batch", r"handler of \(record\) with ack='batch'"),
        (lambda record: None, "manual", r"handler of \(record, acknowledgement\) with ack='manual'"),
        ("handler", "batch", "found str"),
    ],
)
def test_a_handler_that_does_not_fit_is_refused(handler: Any, ack: str, expected: str) -> None:
    consumer = FakeConsumer()
    with pytest.raises(BusError, match=expected):
        run(consumer, handler, ack=ack)
    assert not consumer.is_closed


# ---------------------------------------------------------------- with a transactional id


def run_in_transactions(
    consumer: FakeConsumer, producer: FakeProducer, handler: Callable[..., Any], **options: Any
) -> RunSummary:
    """Run until the script of the consumer is over."""
    stop = threading.Event()
    settings = parse_settings({"workers": 4, "transactional_id": "billing-0", **options})
    consumer.script.append(lambda: stop.set())
    transactions = OutputTransactions(producer, FakeMember(), settings)
    box = DeadLetterBox()
    return ProcessingRun(consumer, consumer, handler, settings, box.send, stop, transactions=transactions).run()


def repeat(record: ConsumerRecord, output: Output) -> None:
    output.send("doubles", b"%d" % record.offset)


def test_what_was_open_before_is_ended_before_the_first_poll_and_all_is_committed_by_transactions() -> None:
    producer = FakeProducer()
    consumer = FakeConsumer([lambda: producer.calls.append("poll"), [record(0), record(1)]])
    _, note = handles_all(consumer, 2)

    def handler(record: ConsumerRecord, output: Output) -> None:
        repeat(record, output)
        note(record)

    summary = run_in_transactions(consumer, producer, handler)
    assert producer.calls[:2] == ["init", "poll"]
    assert (producer.committed, producer.offsets[-1]) == ([b"0", b"1"], {P0: 2})
    assert consumer.commits == []
    assert (summary.handled, summary.committed) == (2, {P0: 2})


def test_output_of_revoked_partitions_is_committed_before_they_are_given_up() -> None:
    producer = FakeProducer()
    consumer = FakeConsumer([[record(0), record(0, 1)]])
    handled, handler = handles_all(consumer, 2)

    def handle(record: ConsumerRecord, output: Output) -> None:
        repeat(record, output)
        handler(record)

    consumer.script += [lambda: consumer.revoke(P0), lambda: producer.calls.append("given up")]
    run_in_transactions(consumer, producer, handle, ack="time", ack_time_ms=3_600_000)
    assert producer.calls.index("commit") < producer.calls.index("given up")
    assert producer.offsets == [{P0: 1}, {P1: 1}]
    assert len(handled) == 2


def test_transaction_that_was_aborted_is_written_again_without_a_handler() -> None:
    producer = FakeProducer(commit=[ErrorCode.TRANSACTION_ABORTABLE])
    consumer = FakeConsumer([[record(0), record(1)]])
    consumer.script.append(waiting_for(consumer, lambda: bool(producer.committed)))
    summary = run_in_transactions(consumer, producer, repeat)
    assert producer.calls.count("abort") == 1
    assert producer.committed == [b"0", b"1"]
    assert summary.handled == 2


def test_run_that_is_fenced_ends_with_the_error() -> None:
    producer = FakeProducer(offsets=[ErrorCode.PRODUCER_FENCED], abort=[ErrorCode.PRODUCER_FENCED])
    consumer = FakeConsumer([[record(0)]])
    consumer.script.append(never(consumer))
    with pytest.raises(BusError) as raised:
        run_in_transactions(consumer, producer, repeat)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED
    assert consumer.is_closed


def test_run_that_is_stopped_while_an_earlier_instance_is_ended_ends_in_order() -> None:
    consumer = FakeConsumer()
    stop = threading.Event()
    stop.set()
    settings = parse_settings({"transactional_id": "billing-0"})
    transactions = OutputTransactions(FakeProducer(init=[ErrorCode.REQUEST_TIMED_OUT]), FakeMember(), settings)
    box = DeadLetterBox()
    summary = ProcessingRun(consumer, consumer, repeat, settings, box.send, stop, transactions=transactions).run()
    assert summary.ended_by == "stop"


def test_handler_with_a_transactional_id_takes_an_output() -> None:
    with pytest.raises(BusError, match=r"expected a handler of \(record, output\) with a transactional_id"):
        run_in_transactions(FakeConsumer(), FakeProducer(), lambda record: None)


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("batch", ["list", "arrow"])
def test_a_call_gets_what_a_poll_gave_of_a_partition_and_it_is_committed_as_a_whole(batch: str) -> None:
    consumer = FakeConsumer([[record(0), record(1), record(7, 1)], [record(2), record(3)]])
    seen: list[tuple[int, list[int]]] = []
    consumer.script.append(waiting_for(consumer, lambda: len(seen) == 3))

    def handler(content: Any) -> None:
        rows = content.to_pylist() if isinstance(content, pa.Table) else [each._asdict() for each in content]
        assert {row["value"] for row in rows} == {b"v"}
        seen.append((rows[0]["partition"], [row["offset"] for row in rows]))

    summary = run(consumer, handler, batch=batch, ack="record")
    assert sorted(seen) == [(0, [0, 1]), (0, [2, 3]), (1, [7])]
    assert consumer.committed == {P0: 4, P1: 8}
    assert {offset for commit in consumer.commits for offset in commit.values()} <= {2, 4, 8}
    assert summary.handled == 5


@pytest.mark.parametrize("batch", ["list", "arrow"])
def test_a_batch_that_fails_is_tried_again_and_put_aside_record_by_record(batch: str) -> None:
    consumer = FakeConsumer([[record(0), record(1)], [record(2)]])
    box, tries = DeadLetterBox(), []
    consumer.script.append(waiting_for(consumer, lambda: consumer.committed == {P0: 3}))

    def handler(content: Any) -> None:
        tries.append(len(content))
        if len(content) == 2:
            raise ValueError("a bad batch")

    summary = run(consumer, handler, box=box, batch=batch, on_error="dead_letter", retries=1, retry_backoff_ms=0)
    assert tries == [2, 2, 1]
    assert box.letters == [(0, "a bad batch"), (1, "a bad batch")]
    assert (summary.handled, summary.dead_lettered, summary.retried) == (1, 2, 1)


def test_output_of_a_batch_is_committed_with_its_last_offset() -> None:
    producer = FakeProducer()
    consumer = FakeConsumer([[record(0), record(1), record(2)]])
    consumer.script.append(waiting_for(consumer, lambda: bool(producer.committed)))

    def handle(records: list[ConsumerRecord], output: Output) -> None:
        output.send("out", b"%d" % len(records))

    summary = run_in_transactions(consumer, producer, handle, batch="list")
    assert (producer.committed, producer.offsets, summary.handled) == ([b"3"], [{P0: 3}], 3)


def test_a_batch_that_is_too_large_for_the_queue_pauses_its_partition() -> None:
    consumer = FakeConsumer([[record(n) for n in range(4)]])
    goes_on = threading.Event()
    consumer.script += [waiting_for(consumer, lambda: consumer.paused == {P0}), goes_on.set]
    consumer.script.append(waiting_for(consumer, lambda: consumer.pauses[-1] == ("resume", [P0])))
    run(consumer, lambda records: goes_on.wait(PATIENCE_S), batch="list", queued_records_max=4)


# ---------------------------------------------------------------- handlers that call the consumer


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_asks_for_the_consumer_calls_it_on_the_thread_that_polls(is_async: bool) -> None:
    consumer = FakeConsumer([[record(0)]])
    consumer.positions[P0] = 41
    seen: list[Any] = []

    def handler(record: ConsumerRecord, consumer: RunningConsumer) -> None:
        consumer.pause([P0])
        seen.append((consumer.position(P0), consumer.paused(), consumer.assignment()))
        consumer.resume([P0])

    async def async_handler(record: ConsumerRecord, *, consumer: RunningConsumer) -> None:
        await asyncio.to_thread(handler, record, consumer)

    consumer.script.append(waiting_for(consumer, lambda: bool(seen)))
    run(consumer, async_handler if is_async else handler)
    assert seen == [(41, {P0}, {P0, P1})]
    assert consumer.pauses == [("pause", [P0]), ("resume", [P0])]


def test_a_handler_has_its_answer_of_the_consumer_while_a_rebalance_waits_for_it() -> None:
    consumer = FakeConsumer([[record(0)]])
    consumer.positions[P0] = 1
    begun, seen = threading.Event(), []

    def handler(record: ConsumerRecord, consumer: RunningConsumer) -> None:
        begun.set()
        seen.append(consumer.position(P0))

    consumer.script += [lambda: begun.wait(PATIENCE_S) and None, lambda: consumer.revoke(P0)]
    run(consumer, handler)
    assert seen == [1]
    assert consumer.committed == {P0: 1}


def test_what_a_handler_has_paused_stays_so_though_its_queue_is_worked_off() -> None:
    consumer = FakeConsumer([[record(0), record(1)]])
    seen: list[int] = []

    def handler(record: ConsumerRecord, consumer: RunningConsumer) -> None:
        if record.offset == 0:
            consumer.pause([P0])
        seen.append(record.offset)

    consumer.script.append(waiting_for(consumer, lambda: len(seen) == 2 and consumer.committed == {P0: 2}))
    run(consumer, handler, queued_records_max=2)
    assert ("resume", [P0]) not in consumer.pauses


def test_a_call_of_the_consumer_after_the_run_is_refused() -> None:
    consumer = FakeConsumer([[record(0)]])
    kept: list[RunningConsumer] = []
    consumer.script.append(waiting_for(consumer, lambda: bool(kept)))
    run(consumer, lambda record, consumer: kept.append(consumer))
    answers: list[BaseException] = []

    def call() -> None:
        try:
            kept[0].assignment()
        except BusError as error:
            answers.append(error)

    late = threading.Thread(target=call)
    late.start()
    late.join(10)
    assert "while its run goes on" in str(answers[0])


def test_a_handler_without_room_for_the_consumer_beside_its_acknowledgement_is_refused() -> None:
    with pytest.raises(BusError, match=r"expected a handler of \(record, acknowledgement\)"):
        run(FakeConsumer(), lambda record, consumer: None, ack="manual")
