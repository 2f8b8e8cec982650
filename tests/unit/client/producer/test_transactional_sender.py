"""The sender of a producer with a transactional id: sequences, what is acknowledged, and what ends a transaction."""

from __future__ import annotations

from typing import Any

import pytest

from bus.client.producer.connections import InitProducer, Resume
from bus.client.producer.transaction_manager import Call, TransactionEnd, TransactionState
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from tests.unit.client.producer.test_sender import OK, Bench, code_of

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def bench_of(*leaders: str, **configs: Any) -> Bench:
    """Return a bench in a transaction of producer 7, epoch 3."""
    bench = Bench(*leaders, identity=None, transactional_id="id", **configs)
    manager(bench).begin_initializing()
    bench.engine.on_initialized(7, 3)
    manager(bench).begin_transaction()
    return bench


def manager(bench: Bench) -> Any:
    found = bench.engine.transactions
    assert found is not None
    return found


def commit(bench: Bench) -> TransactionEnd | None:
    assert bench.engine.start_commit() == []
    bench.engine.end_flush()
    return bench.engine.end_transaction()


def test_each_transaction_counts_its_records_from_0_in_each_partition_under_its_own_epoch() -> None:
    bench = bench_of("a", "a")
    for partition in (0, 1, 0):
        bench.send(b"x", partition)
        bench.answer()
    assert commit(bench) == TransactionEnd(7, 3, True, {P0: 1, P1: 0})
    bench.engine.on_transaction_ended(7, 4)
    manager(bench).begin_transaction()
    bench.send(b"x", 0)
    bench.answer()
    assert bench.sent() == [[(0, 3, 0)], [(1, 3, 0)], [(0, 3, 1)], [(0, 4, 0)]]
    assert commit(bench) == TransactionEnd(7, 4, True, {P0: 0})


def test_outside_of_a_transaction_nothing_is_taken_in() -> None:
    bench = bench_of()
    assert commit(bench) is None
    with pytest.raises(BusError) as caught:
        bench.send(b"x")
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(BusError):
        bench.send_run(b"x")
    assert bench.sent() == []
    assert bench.used_bytes == 0


def test_commit_sends_what_waits_for_company_and_takes_nothing_more() -> None:
    bench = bench_of(linger_ms=60_000)
    future = bench.send(b"x")
    assert bench.sent() == []
    (waited_for,) = bench.engine.start_commit()
    assert bench.sent() == [[(0, 3, 0)]]
    with pytest.raises(BusError):
        bench.send(b"y")
    bench.answer()
    waited_for.wait(0)
    assert future.done()
    assert bench.engine.end_transaction() == TransactionEnd(7, 3, True, {P0: 0})


def test_abort_fails_what_waits_and_what_is_under_way_and_its_late_answers_are_of_no_effect() -> None:
    bench = bench_of(max_in_flight_requests_per_connection=1)
    under_way, waiting = bench.send(b"x"), bench.send(b"y")
    bench.engine.start_abort()
    bench.engine.tick()
    assert [code_of(under_way), code_of(waiting)] == [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert bench.engine.end_transaction() == TransactionEnd(7, 3, False, {})
    bench.engine.on_transaction_ended(7, 4)
    manager(bench).begin_transaction()
    later = bench.send(b"z")
    bench.answer(ErrorCode.INVALID_PRODUCER_EPOCH)  # to the one of before
    assert manager(bench).state is TransactionState.IN_TRANSACTION
    bench.answer()
    assert later.done()
    assert code_of(later) is None
    assert bench.sent() == [[(0, 3, 0)], [(0, 4, 0)]]
    assert commit(bench) == TransactionEnd(7, 4, True, {P0: 0})


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
    ],
)
def test_refusal_of_a_record_ends_the_transaction_and_neither_resumes_nor_asks_for_an_identity(
    code: ErrorCode,
) -> None:
    bench = bench_of()
    future = bench.send(b"x")
    bench.answer(code)
    assert code_of(future) is code
    assert manager(bench).state is TransactionState.ABORTABLE_ERROR
    for call in (lambda: bench.send(b"y"), bench.engine.start_commit):
        with pytest.raises(BusError) as caught:
            call()
        assert caught.value.code is code
    bench.engine.start_abort()
    assert bench.engine.end_transaction() == TransactionEnd(7, 3, False, {})
    bench.engine.on_transaction_ended(7, 4)
    manager(bench).begin_transaction()
    bench.send(b"z")
    assert bench.sent()[-1] == [(0, 4, 0)]
    bench.pass_time(1_000)
    assert not any(isinstance(errand, (InitProducer, Resume)) for errand in bench.errands)


def test_leader_that_misses_what_was_acknowledged_ends_the_transaction() -> None:
    bench = bench_of()
    bench.send(b"x")
    bench.answer()
    future = bench.send(b"y")
    bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert code_of(future) is ErrorCode.TRANSACTION_ABORTABLE
    assert manager(bench).state is TransactionState.ABORTABLE_ERROR
    with pytest.raises(BusError, match="a part of the transaction is missing") as caught:
        bench.engine.start_commit()
    assert caught.value.code is ErrorCode.TRANSACTION_ABORTABLE


def test_records_behind_one_that_was_refused_tell_of_it() -> None:
    bench = bench_of()
    first, second = bench.send(b"x"), bench.send(b"y")
    bench.answer(ErrorCode.INVALID_RECORD)
    bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert code_of(first) is ErrorCode.INVALID_RECORD
    assert code_of(second) is ErrorCode.TRANSACTION_ABORTABLE
    assert "the transaction had failed already" in str(second.exception())


def test_record_that_is_not_acknowledged_in_time_ends_the_transaction() -> None:
    bench = bench_of(delivery_timeout_ms=40_000)
    future = bench.send(b"x")
    bench.pass_time(40_001)
    assert code_of(future) is ErrorCode.REQUEST_TIMED_OUT
    assert manager(bench).state is TransactionState.ABORTABLE_ERROR


def test_repeated_request_goes_on_under_the_same_stamp() -> None:
    bench = bench_of()
    future = bench.send(b"x")
    bench.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    bench.pass_time(200)
    bench.answer(OK)
    assert code_of(future) is None
    assert bench.sent() == [[(0, 3, 0)], [(0, 3, 0)]]
    assert commit(bench) == TransactionEnd(7, 3, True, {P0: 0})


def test_fenced_producer_is_at_its_end() -> None:
    bench = bench_of()
    future = bench.send(b"x")
    bench.answer(ErrorCode.PRODUCER_FENCED)
    assert code_of(future) is ErrorCode.PRODUCER_FENCED
    for call in (lambda: bench.send(b"y"), bench.engine.start_commit, bench.engine.start_abort):
        with pytest.raises(BusError) as caught:
            call()
        assert caught.value.code is ErrorCode.PRODUCER_FENCED


def test_coordinator_that_fences_ends_the_producer_too() -> None:
    bench = bench_of(linger_ms=60_000)
    future = bench.send(b"x")
    bench.engine.on_transaction_failed(Call.COMMIT_OFFSETS, BusError(ErrorCode.PRODUCER_FENCED, "another one"))
    bench.engine.tick()
    assert code_of(future) is ErrorCode.PRODUCER_FENCED
    assert bench.used_bytes == 0


def test_topic_that_is_gone_ends_the_transaction_and_begins_with_0_when_it_comes_back() -> None:
    bench = bench_of()
    bench.send(b"x")
    bench.answer()
    bench.engine.on_refreshed({"t": BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone")})
    bench.send(b"y")
    assert bench.sent() == [[(0, 3, 0)], [(0, 3, 0)]]
