"""Transactions of a run, with a producer and a member in memory: what is committed, put off, refused, asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bus.client.interceptors import ProducerRecord
from bus.errors import BusError, ErrorCode
from bus.processing import parse_settings
from bus.processing.commits import OffsetTracker
from bus.processing.transactional_output import (
    Outcome,
    Output,
    OutputInDoubt,
    OutputRefused,
    OutputTransactions,
    TransactionPutOff,
    WaitingOutcomes,
)
from bus.processing.work import Work
from tests.support.processing import partition, record
from tests.support.processing_transactions import FakeMember, FakeProducer

E = ErrorCode
P0, P1 = partition(0), partition(1)


def outcome(
    offset: int, number: int = 0, *, values: Sequence[bytes] = (b"out",), to_partition: int | None = None
) -> Outcome:
    work = Work(record(offset, number), partition(number), "lane", 1, OffsetTracker())
    return Outcome(work, ([ProducerRecord("doubles", value, partition=to_partition) for value in values],))


def of(producer: FakeProducer, member: FakeMember | None = None, **options: Any) -> OutputTransactions:
    settings = parse_settings({"transactional_id": "billing-0", **options})
    return OutputTransactions(producer, member or FakeMember(), settings)


def commit(
    transactions: OutputTransactions, *outcomes: Outcome, is_given_up: Callable[[], bool] = lambda: False
) -> None:
    transactions.commit(outcomes, {P0: 1}, is_given_up)


# ---------------------------------------------------------------- what is put off


def test_all_is_sent_in_one_transaction() -> None:
    producer = FakeProducer()
    commit(of(producer), outcome(0, values=[b"a", b"b"]), outcome(1, values=[b"c"]))
    assert producer.calls == ["begin", "send", "send", "send", "offsets", "commit"]
    assert producer.committed == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS, E.FENCED_INSTANCE_ID]
)
def test_what_the_group_refuses_is_aborted_and_put_off_and_the_membership_told(code: ErrorCode) -> None:
    producer, member = FakeProducer(offsets=[code]), FakeMember()
    transactions = of(producer, member)
    with pytest.raises(TransactionPutOff):
        commit(transactions, outcome(0))
    assert producer.calls == ["begin", "send", "offsets", "abort"]
    assert member.refused == [code]
    commit(transactions, outcome(0))
    assert producer.committed == [b"out"]


def test_who_is_no_member_begins_no_transaction() -> None:
    producer = FakeProducer()
    with pytest.raises(TransactionPutOff):
        commit(of(producer, FakeMember(BusError(E.UNKNOWN_MEMBER_ID, "gone"))), outcome(0))
    assert producer.calls == []


@pytest.mark.parametrize("code", [E.TRANSACTION_ABORTABLE, E.INVALID_PRODUCER_EPOCH, E.COORDINATOR_NOT_AVAILABLE])
@pytest.mark.parametrize("call", ["send", "offsets", "commit"])
def test_what_may_pass_is_aborted_and_put_off(call: str, code: ErrorCode) -> None:
    producer = FakeProducer(**{call: [code]})
    with pytest.raises(TransactionPutOff):
        commit(of(producer), outcome(0))
    assert producer.calls[-1] == "abort"
    assert producer.committed == []


# ---------------------------------------------------------------- what ends the run


@pytest.mark.parametrize("call", ["begin", "send", "offsets", "commit", "abort"])
def test_fenced_producer_ends_the_run(call: str) -> None:
    producer = FakeProducer(
        **{call: [E.PRODUCER_FENCED] * 2, "commit": [E.PRODUCER_FENCED], "abort": [E.PRODUCER_FENCED]}
    )
    with pytest.raises(BusError) as raised:
        commit(of(producer), outcome(0))
    assert raised.value.code is E.PRODUCER_FENCED


def test_epoch_that_another_instance_has_taken_ends_the_run_as_fenced() -> None:
    producer = FakeProducer(send=[E.INVALID_PRODUCER_EPOCH], abort=[E.PRODUCER_FENCED])
    with pytest.raises(BusError) as raised:
        commit(of(producer), outcome(0))
    assert raised.value.code is E.PRODUCER_FENCED


# ---------------------------------------------------------------- outcomes that are open


def test_end_whose_outcome_is_open_is_asked_for_again_and_not_the_opposite() -> None:
    producer = FakeProducer(commit=[E.REQUEST_TIMED_OUT] * 3)
    commit(of(producer), outcome(0))
    assert producer.calls == ["begin", "send", "offsets", "commit", "commit", "commit", "commit"]


def test_run_that_is_over_does_not_wait_for_an_open_outcome() -> None:
    producer = FakeProducer(commit=[E.REQUEST_TIMED_OUT], abort=[E.INVALID_TXN_STATE])
    with pytest.raises(TransactionPutOff):
        commit(of(producer), outcome(0), is_given_up=lambda: True)
    assert producer.calls == ["begin", "send", "offsets", "commit", "abort"]


def test_initialising_is_repeated_until_what_was_open_has_ended() -> None:
    producer = FakeProducer(init=[E.REQUEST_TIMED_OUT])
    of(producer).initialize(lambda: False)
    assert producer.calls == ["init", "init"]
    with pytest.raises(BusError, match="REQUEST_TIMED_OUT"):
        of(FakeProducer(init=[E.REQUEST_TIMED_OUT])).initialize(lambda: True)


# ---------------------------------------------------------------- output that is refused


def commit_all(transactions: OutputTransactions, left: list[Outcome]) -> list[Outcome]:
    """Commit like a run; return the outcomes whose output was refused."""
    refused: list[Outcome] = []
    while left:
        cut = waiting(*left).cut({P0: left[-1].work.record.offset + 1}, transactions.bytes_max)
        try:
            transactions.commit(cut.outcomes, cut.offsets, lambda: False)
        except OutputInDoubt:
            continue
        except OutputRefused as error:
            refused.append(error.outcome)
            left = [each for each in left if each is not error.outcome]
        else:
            left = left[len(cut.outcomes) :]
    return refused


def test_record_whose_output_is_refused_is_found_out_and_nothing_of_it_is_committed() -> None:
    producer = FakeProducer(refused=[b"large"])
    bad = outcome(1, values=[b"b", b"large"])
    refused = commit_all(of(producer), [outcome(0, values=[b"a"]), bad, outcome(2, values=[b"c"])])
    assert refused == [bad]
    assert producer.committed == [b"a", b"c"]


def test_records_that_are_refused_do_not_have_all_the_others_sent_again() -> None:
    outcomes = [outcome(at, values=[b"%04d" % at]) for at in range(800)]
    bad = outcomes[19::20]
    producer = FakeProducer(refused=[each.records[0].value or b"" for each in bad])
    assert commit_all(of(producer), list(outcomes)) == bad
    assert producer.committed == [b"%04d" % at for at in range(800) if at % 20 != 19]
    assert producer.calls.count("send") < 6 * len(outcomes)


def test_transactions_get_smaller_when_they_are_aborted_and_larger_again_when_not() -> None:
    transactions = of(FakeProducer(commit=[E.TRANSACTION_ABORTABLE]))
    first = transactions.bytes_max
    both = outcome(0, values=[b"x" * 1_000]), outcome(1, values=[b"x" * 1_000])
    with pytest.raises(TransactionPutOff):
        commit(transactions, *both)
    assert 1_000 < transactions.bytes_max < 2_000
    for _ in range(20):
        commit(transactions, both[0])
    assert transactions.bytes_max == first


def test_offset_of_a_deleted_partition_makes_no_transaction_smaller_and_refuses_no_output() -> None:
    class Producer(FakeProducer):
        def send_offsets_to_transaction(self, *_: Any) -> None:
            raise BusError(E.TRANSACTION_ABORTABLE, "gone") from BusError(E.UNKNOWN_TOPIC_OR_PARTITION, "gone")

    transactions = of(Producer())
    first = transactions.bytes_max
    for _ in range(10):
        with pytest.raises(TransactionPutOff):
            commit(transactions, outcome(0))
    assert transactions.bytes_max == first


def test_output_of_one_record_that_no_transaction_takes_is_refused_at_last() -> None:
    transactions = of(FakeProducer(send=[E.TRANSACTION_ABORTABLE] * 100))
    for attempt in range(10):
        try:
            commit(transactions, outcome(0))
        except TransactionPutOff:
            continue
        except OutputRefused:
            assert attempt > 1, "an operator may abort, too"
            return
    pytest.fail("it is tried for ever")


def test_output_for_a_partition_that_its_topic_has_no_more_is_refused_alone() -> None:
    gone = outcome(1, to_partition=2)
    producer = FakeProducer(send=[None, E.UNKNOWN_TOPIC_OR_PARTITION])
    transactions = of(producer)
    with pytest.raises(
        OutputRefused, match="expected a partition below 2, found 2: the topic was deleted, and created"
    ) as raised:
        commit(transactions, outcome(0), gone)
    assert raised.value.outcome is gone
    assert producer.calls[-1] == "abort"


def test_output_for_a_topic_that_is_not_there_is_put_off() -> None:
    with pytest.raises(TransactionPutOff):
        commit(
            of(FakeProducer(send=[E.UNKNOWN_TOPIC_OR_PARTITION], partitions=[E.UNKNOWN_TOPIC_OR_PARTITION])),
            outcome(0, to_partition=2),
        )


# ---------------------------------------------------------------- outputs of handlers


def test_topics_are_looked_up_once() -> None:
    producer = FakeProducer()
    transactions = of(producer)
    records = [ProducerRecord("doubles", b"a"), ProducerRecord("doubles", b"b", partition=1)]
    assert not transactions.has_checked(records)
    transactions.check(records)
    assert transactions.has_checked(records)
    transactions.check(records)
    assert producer.calls == ["partitions"]
    with pytest.raises(BusError, match="expected a partition below 2, found 2"):
        transactions.check([ProducerRecord("doubles", b"c", partition=2)])


def test_output_checks_and_serializes_in_send_and_takes_nothing_after_its_handler() -> None:
    output = Output(lambda topic, headers, key: key, lambda topic, headers, value: str(value).encode())
    output.send("doubles", 7, b"k", [("h", b"1")], 1, 5)
    for wrong in (
        lambda: output.send("doubles", 7, key="text"),
        lambda: output.send(3, 7),  # type: ignore[arg-type]
        lambda: output.send("doubles", 7, timestamp_ms="now"),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, BusError)):
            wrong()
    assert output.close() == [ProducerRecord("doubles", b"7", b"k", [("h", b"1")], 1, 5)]
    with pytest.raises(BusError, match="before the handler returned"):
        output.send("doubles", 8)


# ---------------------------------------------------------------- cuts


def waiting(*outcomes: Outcome) -> WaitingOutcomes:
    found = WaitingOutcomes()
    for each in outcomes:
        found.put(each)
    return found


def offsets_of(outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    return [(each.work.partition.partition, each.work.record.offset) for each in outcomes]


def test_cut_has_what_is_below_its_offsets_in_the_order_of_the_records() -> None:
    cut = waiting(outcome(5), outcome(3), outcome(9), outcome(1, 1)).cut({P0: 6, P1: 4}, 1 << 20)
    assert offsets_of(cut.outcomes) == [(0, 3), (0, 5), (1, 1)]
    assert cut.offsets == {P0: 6, P1: 4}


def test_cut_that_is_too_large_ends_between_two_records_and_has_one_at_least() -> None:
    found = waiting(*(outcome(at, number, values=[b"x" * 100]) for number in (0, 1) for at in (3, 5)))
    cut = found.cut({P0: 6, P1: 6}, 400)
    assert (offsets_of(cut.outcomes), cut.offsets) == ([(0, 3), (0, 5)], {P0: 6, P1: 3})
    cut = found.cut({P0: 6, P1: 6}, 1)
    assert (offsets_of(cut.outcomes), cut.offsets) == ([(0, 3)], {P0: 5})


def test_what_is_committed_or_given_up_is_in_no_cut() -> None:
    found = waiting(outcome(3), outcome(5), outcome(3, 1))
    found.note_committed(P0, 5)
    found.forget([P1])
    assert offsets_of(found.cut({P0: 6, P1: 6}, 1 << 20).outcomes) == [(0, 5)]
