from __future__ import annotations

import pytest

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, TopicFacts
from bus.spark.source.options import Assigned, OptionError, Subscribed, SubscribedPattern
from bus.spark.source.positions import AtGroup, AtOffsets, AtTime, AtTimes, AtVersions, Edge, Position
from bus.spark.source.starting import resolve, select, select_known
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
