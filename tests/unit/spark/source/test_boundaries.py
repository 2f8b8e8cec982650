from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, TopicFacts
from bus.spark.source.boundaries import (
    Continuation,
    LogNow,
    Loss,
    Selection,
    continue_at,
    ranges_left,
    resolve,
    same_topics,
    select,
    select_known,
)
from bus.spark.source.planning import OffsetRange
from bus.spark.source.positions import AtGroup, AtOffsets, AtTime, AtTimes, AtVersions, Edge, Position, QueryOffsets
from bus.spark.source.source_options import Assigned, OptionError, Subscribed, SubscribedPattern
from tests.support.fake_log_access import FakeLogAccess

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPICS = {
    "orders": TopicFacts("id-o", 2, False),
    "orders-eu": TopicFacts("id-eu", 1, False),
    "__consumer_offsets": TopicFacts("id-c", 50, True),
}


def test_subscribed_topics_have_all_their_partitions() -> None:
    selection = select(Subscribed(("orders", "orders-eu")), TOPICS)
    assert selection.partitions == (P0, P1, TopicPartition("orders-eu", 0))
    assert selection.topic_ids == {"orders": "id-o", "orders-eu": "id-eu"}


def test_a_pattern_is_of_the_whole_name_and_of_no_internal_topic() -> None:
    assert select(SubscribedPattern("orders"), TOPICS).partitions == (P0, P1)
    assert select(SubscribedPattern(".*"), TOPICS).topic_ids.keys() == {"orders", "orders-eu"}
    assert select(SubscribedPattern("nothing.*"), TOPICS).partitions == ()


def test_an_internal_topic_is_read_if_it_is_named() -> None:
    assert len(select(Subscribed(("__consumer_offsets",)), TOPICS).partitions) == 50


def test_assigned_partitions_are_those_that_were_named() -> None:
    selection = select(Assigned((P1,)), TOPICS)
    assert (selection.partitions, selection.topic_ids) == ((P1,), {"orders": "id-o"})


def test_a_topic_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BusError, match="found 'order'; topics there: orders, orders-eu") as caught:
        select(Subscribed(("order",)), TOPICS)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BusError, match="expected a partition of orders from 0 to 1, found 2"):
        select(Assigned((P0, TopicPartition("orders", 2))), TOPICS)


def test_of_a_running_query_those_that_are_gone_are_left_out() -> None:
    assert select_known(Subscribed(("order", "orders")), TOPICS).partitions == (P0, P1)
    assert select_known(Assigned((P1, TopicPartition("orders", 2), TopicPartition("x", 0))), TOPICS).partitions == (P1,)
    assert select_known(SubscribedPattern("orders"), TOPICS).partitions == (P0, P1)


BOUNDS = {P0: Bounds(10, 100), P1: Bounds(0, 50)}


@pytest.fixture
def log() -> FakeLogAccess:
    log = FakeLogAccess()
    log.times_ms = {P0: list(range(1_000, 1_100)), P1: list(range(2_000, 2_050))}
    log.versions = {P0: [0, 40, 100], P1: [0, 50]}
    log.groups = {"sales": {P0: 33, TopicPartition("alerts", 0): 1}, "other": {TopicPartition("alerts", 0): 1}}
    return log


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Edge.EARLIEST, {P0: 10, P1: 0}),
        (Edge.LATEST, {P0: 100, P1: 50}),
        (AtOffsets({P0: -2, P1: -1}), {P0: 10, P1: 50}),
        (AtOffsets({P0: 23, P1: 7}), {P0: 23, P1: 7}),
        (AtTime(1_020), {P0: 20, P1: 0}),
        (AtTime(2_001), {P0: 100, P1: 1}),  # no record of partition 0 is so late
        (AtTimes({P0: 1_050, P1: 2_050}), {P0: 50, P1: 50}),
        (AtVersions(1), {P0: 40, P1: 50}),
        (AtVersions({P0: 2, P1: 0}), {P0: 100, P1: 0}),
        (AtGroup("sales"), {P0: 33, P1: 0}),
    ],
)
def test_a_position_is_an_offset_for_each_partition(
    log: FakeLogAccess, position: Position, expected: dict[TopicPartition, int]
) -> None:
    assert resolve(position, BOUNDS, log) == expected


@pytest.mark.parametrize(
    ("position", "edge", "message"),
    [
        (AtOffsets({P0: 5}), "starting", r"startingOffsets: expected a number for each .* found none for orders-1"),
        (AtOffsets({P0: 5}), "ending", r"endingOffsets: expected a number for each partition"),
        (
            AtOffsets({P0: 5, P1: 5, TopicPartition("orders", 2): 5}),
            "starting",
            r"startingOffsets: .*one for orders-2, which the query does not read",
        ),
        (AtTimes({P1: 5}), "starting", r"startingOffsetsByTimestamp: .*none for orders-0"),
        (AtVersions({P1: 5}), "starting", r"bus.startingVersion: .*none for orders-0"),
        (AtVersions(2), "ending", r"bus.endingVersion: expected a version of orders-1 that is still kept, found 2"),
        (AtGroup("other"), "starting", r"bus.startingGroup: .*committed offsets of orders, found 'other'"),
        (AtGroup("nobody"), "starting", r"bus.startingGroup: .*found 'nobody'"),
    ],
)
def test_an_offset_that_was_not_named_is_never_made_up(
    log: FakeLogAccess, position: Position, edge: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        resolve(position, BOUNDS, log, edge=edge)


def test_a_time_after_the_last_record_is_refused_unless_the_end_will_do(log: FakeLogAccess) -> None:
    with pytest.raises(OptionError, match=r"startingTimestamp: .*orders-0 at or after 2001 ms, found none; .*=latest"):
        resolve(AtTime(2_001), BOUNDS, log, is_late_latest=False)
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp: .*orders-1 at or after 3000 ms"):
        resolve(AtTimes({P0: 1_000, P1: 3_000}), BOUNDS, log, is_late_latest=False)


ALERTS = TopicPartition("alerts", 0)
IDS = {"orders": "id-1"}


def come_to(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] = IDS) -> QueryOffsets:
    return QueryOffsets(offsets, topic_ids, query_id="q")


def log_now(bounds: Mapping[TopicPartition, Bounds], topic_ids: Mapping[str, str] = IDS) -> LogNow:
    return LogNow(Selection(tuple(bounds), topic_ids), bounds)


def told(losses: Sequence[Loss]) -> list[str]:
    return [loss.message for loss in losses]


def lost(going: Continuation) -> int:
    return sum(loss.offsets for loss in going.losses)


# ---------------------------------------------------------------- where a query goes on


def test_a_query_goes_on_where_it_came_to() -> None:
    going = continue_at(come_to({P0: 5, P1: 10}), log_now({P0: Bounds(0, 9), P1: Bounds(3, 10)}))
    assert (going.begin, going.losses) == ({P0: 5, P1: 10}, ())


def test_a_partition_that_has_joined_begins_with_its_first_record() -> None:
    going = continue_at(come_to({P0: 5}), log_now({P0: Bounds(0, 9), P1: Bounds(0, 10)}))
    assert (going.begin, going.losses) == ({P0: 5, P1: 0}, ())


def test_records_that_went_before_they_were_read_are_counted_and_named() -> None:
    going = continue_at(come_to({P0: 5, P1: 10}), log_now({P0: Bounds(8, 9), P1: Bounds(10, 10)}))
    assert (going.begin, lost(going)) == ({P0: 8, P1: 10}, 3)
    assert told(going.losses) == ["orders-0: records 5 to 7 were not read and are gone, the log begins at 8"]


def test_first_records_of_a_partition_that_has_joined_may_be_gone_too() -> None:
    going = continue_at(come_to({P0: 5}), log_now({P0: Bounds(0, 9), P1: Bounds(4, 10)}))
    assert (going.begin[P1], lost(going)) == (4, 4)
    assert told(going.losses) == ["orders-1: records 0 to 3 were not read and are gone, the log begins at 4"]


def test_a_log_that_ends_before_what_was_read_is_a_loss() -> None:
    going = continue_at(come_to({P0: 5}), log_now({P0: Bounds(0, 3)}))
    assert going.begin == {P0: 3}
    assert told(going.losses) == ["orders-0: expected the log to go on at offset 5, found its end at 3"]


def test_a_topic_that_was_made_again_is_another_one() -> None:
    going = continue_at(come_to({P0: 5}), log_now({P0: Bounds(0, 9)}, {"orders": "id-2"}))
    assert going.begin == {P0: 0}
    assert told(going.losses) == ["topic orders was deleted and made again: its id was id-1, and is id-2"]


def test_a_topic_that_is_gone_is_a_loss() -> None:
    both = {"orders": "id-1", "alerts": "id-a"}
    going = continue_at(come_to({P0: 5, ALERTS: 7}, both), log_now({P0: Bounds(0, 9)}))
    assert going.begin == {P0: 5}
    assert told(going.losses) == ["topic alerts was deleted, or is not subscribed to any more"]


def test_a_partition_that_is_not_read_any_more_is_a_loss() -> None:
    going = continue_at(come_to({P0: 5, P1: 7}), log_now({P0: Bounds(0, 9)}))
    assert (going.begin, told(going.losses)) == ({P0: 5}, ["orders-1 is not read any more"])


# ---------------------------------------------------------------- a batch


def test_a_batch_is_what_lies_between_its_offsets() -> None:
    bounds = {P0: Bounds(0, 100), P1: Bounds(0, 100)}
    ranges, losses = ranges_left(come_to({P0: 5}), come_to({P0: 9, P1: 3}), IDS, bounds)
    assert (ranges, losses) == ([OffsetRange(P0, 5, 9), OffsetRange(P1, 0, 3)], ())


def test_a_batch_without_records_has_no_ranges() -> None:
    assert ranges_left(come_to({P0: 5}), come_to({P0: 5}), IDS, {P0: Bounds(5, 5)}) == ([], ())


def test_what_has_gone_since_a_batch_was_planned_is_left_out_and_told() -> None:
    ranges, losses = ranges_left(come_to({P0: 5}), come_to({P0: 9}), IDS, {P0: Bounds(7, 100)})
    assert ranges == [OffsetRange(P0, 7, 9)]
    assert told(losses) == ["orders-0: records 5 to 6 were not read and are gone, the log begins at 7"]


def test_a_batch_that_has_gone_as_a_whole_is_told() -> None:
    ranges, losses = ranges_left(come_to({P0: 5}), come_to({P0: 9}), IDS, {P0: Bounds(50, 100)})
    assert (ranges, len(losses)) == ([], 1)
    assert "records 5 to 8" in losses[0].message


def test_a_batch_beyond_the_end_of_the_log_is_told() -> None:
    ranges, losses = ranges_left(come_to({P0: 5}), come_to({P0: 9}), IDS, {P0: Bounds(0, 7)})
    assert ranges == [OffsetRange(P0, 5, 7)]
    assert told(losses) == ["orders-0: expected records up to offset 9, found the log's end at 7"]


def test_a_batch_that_begins_in_an_earlier_topic_of_that_name_has_all_of_the_new_one() -> None:
    ended = come_to({P0: 3}, {"orders": "id-2"})
    assert ranges_left(come_to({P0: 50}), ended, {"orders": "id-2"}, {P0: Bounds(0, 100)}) == (
        [OffsetRange(P0, 0, 3)],
        (),
    )


def test_records_of_another_topic_of_that_name_are_never_read() -> None:
    now = {"orders": "id-2"}
    assert same_topics(come_to({P0: 9}), now) == []
    ranges, losses = ranges_left(come_to({P0: 5}), come_to({P0: 9}), now, {})
    assert ranges == []
    assert told(losses) == ["topic orders was deleted and made again: its id was id-1, and is id-2"]
