"""The processing loop without threads: what is worked on, committed, paused, and what a rebalance leaves of it."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.client.interceptors import ProducerRecord
from bus.client.values import ConsumerRecord
from bus.processing import parse_settings
from bus.processing.record_flow import Lanes, RecordFlow
from bus.processing.transactional_output import Outcome
from bus.processing.work import FailureDecision, Pass, Stop, TryAgain, Work
from tests.support.processing import partition, record

P0, P1 = partition(0), partition(1)


def flow_of(records: Iterable[ConsumerRecord] = (), **options: Any) -> RecordFlow:
    flow = RecordFlow(parse_settings(options), now_ms=0)
    flow.add(list(records))
    return flow


def take_all(flow: RecordFlow, now_ms: int = 0) -> list[Work]:
    return list(iter(lambda: flow.take(now_ms), None))


def places(works: Iterable[Work]) -> list[tuple[int, int]]:
    return [(work.partition.partition, work.record.offset) for work in works]


def work_off(flow: RecordFlow) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    while (work := flow.take(0)) is not None:
        seen += places([work])
        flow.succeed(work)
    return seen


def fail(flow: RecordFlow, work: Work, error: BaseException, now_ms: int) -> FailureDecision:
    return flow.fail(work, flow.decide(work, error), now_ms)


def refuse(flow: RecordFlow, outcome: Outcome, error: Exception, *, is_too_large: bool) -> FailureDecision | None:
    if is_too_large and flow.make_smaller(outcome):
        return None
    return flow.refuse(outcome, flow.decide_refused(outcome, error))


# ---------------------------------------------------------------- order


def test_by_partition_one_record_of_each_partition_is_worked_on() -> None:
    flow = flow_of([record(0), record(1), record(0, 1), record(1, 1)])
    first = take_all(flow)
    assert places(first) == [(0, 0), (1, 0)]
    flow.succeed(first[1])
    assert places(take_all(flow)) == [(1, 1)]


def test_by_key_records_of_one_key_wait_for_each_other_and_others_do_not() -> None:
    flow = flow_of([record(0, key=b"a"), record(1, key=b"a"), record(2, key=b"b"), record(0, 1, key=b"a")], order="key")
    assert places(take_all(flow)) == [(0, 0), (0, 2), (1, 0)]


def test_by_key_records_without_a_key_wait_for_nobody() -> None:
    assert places(take_all(flow_of([record(0), record(1)], order="key"))) == [(0, 0), (0, 1)]


def test_by_key_keys_that_cannot_be_hashed_wait_for_each_other() -> None:
    flow = flow_of([record(0, key={"id": 1}), record(1, key={"id": 2}), record(2, key=b"a")], order="key")
    assert places(take_all(flow)) == [(0, 0), (0, 2)]


def test_without_order_all_are_worked_on_at_once() -> None:
    assert len(take_all(flow_of([record(n, key=b"a") for n in range(5)], order="none"))) == 5


@given(
    records=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b", None])), max_size=20),
    order=st.sampled_from(["partition", "key", "none"]),
    seed=st.integers(0, 2**32),
)
def test_records_of_a_lane_start_in_order_and_no_commit_passes_one_that_is_not_done(
    records: list[tuple[int, bytes | None]], order: str, seed: int
) -> None:
    chance = random.Random(seed)
    flow = flow_of(
        (record(n, number, key) for n, (number, key) in enumerate(records)),
        order=order,
        ack="record",
        on_error="retry",
        retry_backoff_ms=0,
    )
    running: list[Work] = []
    finished: dict[Any, list[int]] = {}
    done: set[tuple[int, int]] = set()
    while len(done) < len(records):
        work = flow.take(0) if chance.randrange(2) or not running else None
        if work is not None:
            assert work.lane not in {other.lane for other in running}
            running.append(work)
            continue
        work = running.pop(chance.randrange(len(running)))
        if chance.randrange(4) == 0:
            assert fail(flow, work, ValueError(), 0) == TryAgain(0)
            continue
        flow.succeed(work)
        done.update(places([work]))
        finished.setdefault(same_order(order, work.record), []).append(work.record.offset)
        for place, offset in flow.due_offsets(0).items():
            below = {(number, n) for n, (number, _) in enumerate(records) if number == place.partition and n < offset}
            assert below <= done
    assert all(offsets == sorted(offsets) for offsets in finished.values())
    assert {p.partition: o for p, o in flow.all_offsets().items()} == {
        number: n + 1 for n, (number, _) in enumerate(records)
    }


def same_order(order: str, record: ConsumerRecord) -> Any:
    """Records of which this is equal may not overtake each other."""
    if order == "partition":
        return record.partition
    return (
        (record.partition, record.offset) if order == "none" or record.key is None else (record.partition, record.key)
    )


# ---------------------------------------------------------------- when to commit


def test_by_record_what_is_done_is_due_at_once_but_not_past_what_is_not() -> None:
    flow = flow_of([record(0), record(1), record(2)], order="none", ack="record")
    first, second, _ = take_all(flow)
    flow.succeed(second)
    assert flow.due_offsets(0) == {}
    flow.succeed(first)
    assert flow.due_offsets(0) == {P0: 2}


def test_by_batch_a_commit_is_due_when_all_records_of_the_poll_are_handled() -> None:
    flow = flow_of([record(0), record(1)], order="none")
    flow.add([record(2)])
    first, second, _ = take_all(flow)
    flow.succeed(first)
    assert flow.due_offsets(0) == {}
    flow.succeed(second)
    assert flow.due_offsets(0) == {P0: 2}


def test_by_time_a_commit_is_due_after_the_interval_and_not_before() -> None:
    flow = flow_of([record(0)], ack="time", ack_time_ms=100)
    work_off(flow)
    assert flow.due_offsets(99) == {}
    assert flow.next_commit_ms() == 100
    assert flow.due_offsets(100) == {P0: 1}
    flow.note_committed({P0: 1}, 100)
    flow.add([record(1)])
    work_off(flow)
    assert flow.due_offsets(199) == {}


def test_by_count_a_commit_is_due_after_so_many_records_of_all_partitions() -> None:
    flow = flow_of([record(0), record(0, 1), record(1)], ack="count", ack_count=2)
    first, second = take_all(flow)
    flow.succeed(first)
    assert flow.due_offsets(10**9) == {}
    flow.succeed(second)
    assert flow.due_offsets(0) == {P0: 1, P1: 1}
    flow.note_committed({P0: 1, P1: 1}, 0)
    work_off(flow)
    assert flow.due_offsets(10**9) == {}


@pytest.mark.parametrize(("done", "now_ms", "is_due"), [(1, 99, False), (1, 100, True), (2, 0, True)])
def test_by_count_and_time_whichever_comes_first(done: int, now_ms: int, is_due: bool) -> None:
    flow = flow_of([record(n) for n in range(done)], ack="count_time", ack_count=2, ack_time_ms=100)
    work_off(flow)
    assert bool(flow.due_offsets(now_ms)) is is_due


def test_manually_a_record_is_done_when_it_is_acknowledged_whatever_its_handler_did() -> None:
    flow = flow_of([record(0), record(1)], order="none", ack="manual_immediate")
    first, second = take_all(flow)
    flow.succeed(first)
    flow.succeed(second)
    assert flow.due_offsets(0) == {}
    assert flow.acknowledge(second)
    assert flow.due_offsets(0) == {}
    assert flow.acknowledge(first)
    assert flow.due_offsets(0) == {P0: 2}
    assert not flow.acknowledge(first)


def test_manual_acknowledgements_are_committed_with_the_batch() -> None:
    flow = flow_of([record(0), record(1)], ack="manual")
    first = flow.take(0)
    assert first is not None
    flow.acknowledge(first)
    flow.succeed(first)
    assert flow.due_offsets(0) == {}
    second = flow.take(0)
    assert second is not None
    flow.succeed(second)
    assert flow.due_offsets(0) == {P0: 1}


def test_what_is_committed_is_not_due_again() -> None:
    flow = flow_of([record(0)], ack="record")
    work_off(flow)
    flow.note_committed(flow.due_offsets(0), 0)
    assert flow.due_offsets(0) == {}
    assert not flow.needs_attention(0)


# ---------------------------------------------------------------- errors


def test_a_record_that_is_tried_again_keeps_its_place() -> None:
    flow = flow_of([record(0), record(1)], on_error="retry", retry_backoff_ms=50)
    work = flow.take(0)
    assert work is not None
    assert fail(flow, work, ValueError(), 1_000) == TryAgain(50)
    assert flow.take(1_049) is None
    assert flow.next_retry_ms() == 1_050
    again = flow.take(1_050)
    assert again is not None
    assert (again.record.offset, again.attempt) == (0, 2)


def test_a_skipped_record_counts_as_done() -> None:
    flow = flow_of([record(0)], on_error="skip", ack="record")
    work = flow.take(0)
    assert work is not None
    assert fail(flow, work, ValueError(), 0) is Pass.SKIP
    assert flow.due_offsets(0) == {P0: 1}
    assert flow.counts.skipped == 1


def test_a_dead_letter_counts_as_done_only_when_it_is_sent() -> None:
    flow = flow_of([record(0), record(1)], on_error="dead_letter", ack="record")
    work = flow.take(0)
    assert work is not None
    assert fail(flow, work, ValueError(), 0) is Pass.DEAD_LETTER
    assert flow.due_offsets(0) == {}
    assert flow.take(0) is None, "what is behind it waits"
    flow.pass_over(work, is_dead_letter=True)
    assert flow.due_offsets(0) == {P0: 1}
    assert flow.counts.dead_lettered == 1


def test_a_dead_letter_that_cannot_be_sent_stops_before_its_record() -> None:
    flow = flow_of([record(0)], on_error="dead_letter", ack="record")
    work = flow.take(0)
    assert work is not None
    fail(flow, work, ValueError(), 0)
    failure = OSError("no broker")
    flow.stop_for(work, failure)
    assert flow.failure == (record(0), failure)
    assert flow.all_offsets() == {}


def test_after_a_stop_nothing_is_handed_out_and_what_is_under_way_still_counts() -> None:
    flow = flow_of([record(0), record(1), record(0, 1)], ack="record")
    first, other = take_all(flow)
    fail(flow, first, ValueError("first"), 0)
    assert flow.is_stopped
    assert flow.take(0) is None
    flow.succeed(other)
    assert flow.all_offsets() == {P1: 1}
    assert flow.positions() == {P0: 0, P1: 1}


# ---------------------------------------------------------------- rebalances


def test_of_a_revoked_partition_what_waits_is_dropped_and_what_is_under_way_still_counts() -> None:
    flow = flow_of([record(0), record(1), record(0, 1)])
    running, other = take_all(flow)
    flow.let_go([P0])
    assert flow.running_count([P0]) == 1
    flow.succeed(running)
    assert flow.running_count([P0]) == 0
    assert flow.all_offsets([P0]) == {P0: 1}
    flow.forget([P0])
    assert flow.take(0) is None
    flow.succeed(other)
    assert flow.all_offsets() == {P1: 1}


def test_of_a_lost_partition_nothing_is_committed() -> None:
    flow = flow_of([record(0), record(1)], ack="record", order="none")
    first, second = take_all(flow)
    flow.succeed(first)
    flow.let_go([P0])
    flow.forget([P0])
    flow.succeed(second)
    assert flow.all_offsets() == {}
    assert flow.counts.abandoned == 1


def test_work_of_an_earlier_assignment_does_not_count_when_the_partition_is_back() -> None:
    flow = flow_of([record(0), record(1)], ack="record")
    old = flow.take(0)
    assert old is not None
    flow.let_go([P0])
    flow.forget([P0])
    flow.add([record(0), record(1)])
    assert flow.take(0) is None, "its lane is still taken: the new owner is we, and order holds"
    flow.succeed(old)
    assert flow.all_offsets() == {}
    assert work_off(flow) == [(0, 0), (0, 1)]
    assert flow.all_offsets() == {P0: 2}


def test_an_acknowledgement_of_an_earlier_assignment_does_not_count() -> None:
    flow = flow_of([record(0)], ack="manual_immediate")
    old = flow.take(0)
    assert old is not None
    flow.succeed(old)
    flow.let_go([P0])
    flow.forget([P0])
    flow.add([record(0)])
    assert not flow.acknowledge(old)
    assert flow.all_offsets() == {}


def test_a_failure_while_its_partition_is_given_up_is_not_tried_again() -> None:
    flow = flow_of([record(0)], on_error="retry", retry_backoff_ms=0)
    work = flow.take(0)
    assert work is not None
    flow.let_go([P0])
    fail(flow, work, ValueError(), 0)
    assert flow.running_count([P0]) == 0
    flow.forget([P0])
    assert flow.take(10**6) is None
    assert flow.all_offsets() == {}


def test_a_batch_whose_rest_was_revoked_is_over() -> None:
    flow = flow_of([record(0), record(0, 1), record(1, 1)])
    flow.add([record(1)])
    of_p0, of_p1 = take_all(flow)
    flow.succeed(of_p0)
    assert flow.due_offsets(0) == {}
    flow.let_go([P1])
    flow.forget([P1])
    flow.succeed(of_p1)
    assert flow.due_offsets(0) == {P0: 1}, "although the next batch has only begun"


# ---------------------------------------------------------------- bounds


def test_a_partition_with_too_many_records_is_paused_until_half_of_them_are_done() -> None:
    flow = flow_of([record(n) for n in range(4)], queued_records_max=4)
    assert flow.changed_pauses() == ([P0], [])
    assert flow.changed_pauses() == ([], [])
    for expected in ([], [P0]):
        work = flow.take(0)
        assert work is not None
        flow.succeed(work)
        assert flow.changed_pauses() == ([], expected)


def test_a_partition_whose_records_are_done_before_it_was_paused_is_not_paused() -> None:
    flow = flow_of([record(n) for n in range(4)], queued_records_max=4)
    work_off(flow)
    assert flow.changed_pauses() == ([], [])


def test_done_records_behind_one_that_is_not_count_as_queued() -> None:
    flow = flow_of([record(n) for n in range(4)], queued_records_max=4, order="none")
    flow.changed_pauses()
    first, *others = take_all(flow)
    for work in others:
        flow.succeed(work)
    assert flow.changed_pauses() == ([], [])
    flow.succeed(first)
    assert flow.changed_pauses() == ([], [P0])


def test_a_revoked_partition_is_neither_paused_nor_resumed() -> None:
    flow = flow_of([record(n) for n in range(4)], queued_records_max=4)
    flow.changed_pauses()
    flow.let_go([P0])
    flow.forget([P0])
    assert flow.changed_pauses() == ([], [])
    flow.add([record(n) for n in range(4)])
    assert flow.changed_pauses() == ([P0], [])


def lanes_of(items: dict[Hashable, str]) -> Lanes[str]:
    lanes: Lanes[str] = Lanes()
    for lane, letters in items.items():
        for letter in letters:
            lanes.add(lane, letter)
    return lanes


def test_one_item_of_a_lane_at_a_time() -> None:
    lanes = lanes_of({"x": "ab"})
    assert lanes.take(0) == "a"
    assert lanes.take(0) is None
    lanes.finish("x")
    assert lanes.take(0) == "b"


def test_lanes_take_turns() -> None:
    lanes = lanes_of({"x": "abc", "y": "pq"})
    taken = []
    for lane in "xyxyx":
        taken.append(lanes.take(0))
        lanes.finish(lane)
    assert taken == ["a", "p", "b", "q", "c"]
    assert lanes.is_empty


def test_what_is_put_off_holds_up_its_lane_and_no_other() -> None:
    lanes = lanes_of({"x": "ab", "y": "p"})
    lanes.take(0)
    lanes.put_off("x", "a again", until_ms=100)
    assert lanes.take(99) == "p"
    assert lanes.take(99) is None
    assert lanes.next_delayed_ms() == 100
    assert lanes.take(100) == "a again"
    lanes.finish("x")
    assert lanes.take(100) == "b"


def test_what_is_dropped_is_not_handed_out_but_what_was_taken_ends_in_its_lane() -> None:
    lanes = lanes_of({"x": "ab", "y": "pq"})
    assert lanes.take(0) == "a"
    assert lanes.drop(lambda item: item not in "abp") == 2
    lanes.add("x", "c")
    assert lanes.take(0) == "q"
    assert lanes.take(0) is None
    lanes.finish("x")
    assert lanes.take(0) == "c"


def test_what_waits_for_another_attempt_is_dropped_too() -> None:
    lanes = lanes_of({"x": "a"})
    lanes.take(0)
    lanes.put_off("x", "a", until_ms=10)
    assert lanes.drop(lambda item: False) == 1
    assert lanes.next_delayed_ms() is None
    assert lanes.take(10) is None
    assert lanes.is_empty


# ---------------------------------------------------------------- output that waits for its commit


def outcome_of(work: Work, **changes: Any) -> Outcome:
    return Outcome(work, ([ProducerRecord("doubles", b"%d" % work.record.offset)],), **changes)


def with_outcomes(**options: Any) -> tuple[RecordFlow, list[Outcome]]:
    """Three records that are done."""
    flow = flow_of([record(0), record(1), record(2)], transactional_id="id", ack="record", **options)
    outcomes = []
    while (work := flow.take(0)) is not None:
        outcomes.append(outcome_of(work))
        flow.succeed(work, outcomes[-1])
    return flow, outcomes


def test_output_goes_with_the_offset_of_its_record_and_with_no_other() -> None:
    flow, outcomes = with_outcomes()
    assert flow.cut({P0: 2}, 1 << 20).outcomes == outcomes[:2]
    flow.note_committed({P0: 2}, 0)
    assert flow.cut(flow.all_offsets(), 1 << 20).outcomes == outcomes[2:]


def test_output_of_partitions_that_are_given_up_is_forgotten_also_when_it_comes_later() -> None:
    flow = flow_of([record(0), record(0, 1)], transactional_id="id", ack="record")
    here, there = take_all(flow)
    flow.succeed(here, outcome_of(here))
    flow.let_go([P0, P1])
    flow.forget([P0, P1])
    flow.succeed(there, outcome_of(there))
    flow.add([record(0), record(0, 1)])
    for work in take_all(flow):
        flow.succeed(work)
    assert flow.cut(flow.all_offsets(), 1 << 20).outcomes == []


def test_output_that_is_refused_and_skipped_is_not_committed_and_its_record_passed() -> None:
    flow, outcomes = with_outcomes(on_error="skip")
    assert refuse(flow, outcomes[1], ValueError(), is_too_large=False) is Pass.SKIP
    assert (flow.counts.handled, flow.counts.skipped) == (2, 1)
    assert flow.cut({P0: 3}, 1 << 20).outcomes == [outcomes[0], outcomes[2]]


@pytest.mark.parametrize("on_error", ["stop", "retry"])
def test_output_that_is_refused_stops_in_front_of_its_record(on_error: str) -> None:
    flow, outcomes = with_outcomes(on_error=on_error)
    assert isinstance(refuse(flow, outcomes[1], ValueError(), is_too_large=False), Stop)
    assert flow.is_stopped
    assert flow.failure is not None
    assert flow.failure[0].offset == 1
    assert flow.all_offsets() == {P0: 1}


def test_letter_takes_the_place_of_output_and_gets_smaller_until_it_has_no_other_form() -> None:
    flow, outcomes = with_outcomes(on_error="dead_letter")
    assert refuse(flow, outcomes[1], ValueError(), is_too_large=True) is Pass.DEAD_LETTER
    forms = ([ProducerRecord("dlq", b"large")], [ProducerRecord("dlq", b"small")])
    letter = Outcome(outcomes[1].work, forms, is_letter=True)
    flow.replace_by_letter(letter)
    assert refuse(flow, letter, ValueError(), is_too_large=True) is None
    smaller = flow.cut({P0: 3}, 1 << 20).outcomes[1]
    assert smaller.records == forms[1]
    assert isinstance(refuse(flow, smaller, ValueError(), is_too_large=True), Stop)
    assert flow.all_offsets() == {P0: 1}
    assert (flow.counts.handled, flow.counts.dead_lettered) == (2, 1)


# ---------------------------------------------------------------- topics that are created again


def test_partition_whose_offsets_go_back_begins_again_and_others_go_on() -> None:
    """The topic was deleted and created again."""
    flow = flow_of([record(7), record(8), record(9), record(0, 1)])
    (before, other) = take_all(flow)
    flow.add([record(0), record(1)])
    flow.succeed(before)
    flow.succeed(other)
    assert (flow.counts.abandoned, flow.all_offsets()) == (1, {P1: 1})
    assert work_off(flow) == [(0, 0), (0, 1)]
    assert flow.all_offsets() == {P0: 2, P1: 1}


def test_records_of_both_topics_in_one_poll_end_their_batch() -> None:
    flow = flow_of([record(7), record(8), record(0)], ack="batch")
    assert work_off(flow) == [(0, 0)]
    assert flow.due_offsets(0) == {P0: 1}


def test_paused_partition_that_begins_again_is_resumed() -> None:
    flow = flow_of([record(offset) for offset in range(10, 20)], queued_records_max=10)
    assert flow.changed_pauses() == ([P0], [])
    flow.add([record(0)])
    assert flow.changed_pauses() == ([], [P0])
