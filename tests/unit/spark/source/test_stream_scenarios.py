"""Scenarios of Spark's tests of its Kafka source for a streaming query, over a log in memory: every subscription from
every start, stopped and started again, with topics and partitions that come and go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from bus.model import TopicPartition
from bus.spark.source.access import Bounds
from bus.spark.source.source_options import OptionError
from bus.spark.source.stream import DataLost
from tests.support.fake_log_access import FakeLogAccess
from tests.support.planned_query import Query

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def log() -> FakeLogAccess:
    log = FakeLogAccess()
    log.create("orders", 10, 5)
    log.times_ms = {P0: [*[1_000] * 7, *[2_000] * 3], P1: [*[1_000] * 4, 2_000]}
    return log


def grow(log: FakeLogAccess, partition: TopicPartition, end: int) -> None:
    log.bounds_of[partition] = Bounds(log.bounds_of[partition].begin, end)


def restarted(query: Query, /, **options: str) -> Query:
    again = Query(query.log, **options)
    again.offset = query.offset
    return again


# ---------------------------------------------------------------- where a query begins

SUBSCRIPTIONS = [
    {"assign": '{"orders":[0,1]}'},
    {"subscribe": "orders"},
    {"subscribePattern": "or.*"},
]
STARTS: list[tuple[dict[str, str], dict[str, tuple[int, int]] | None]] = [
    ({"startingOffsets": "latest"}, None),
    ({"startingOffsets": "earliest"}, {"orders-0": (0, 10), "orders-1": (0, 5)}),
    ({"startingOffsets": '{"orders":{"0":-2,"1":-1}}'}, {"orders-0": (0, 10)}),
    ({"startingOffsets": '{"orders":{"0":8,"1":1}}'}, {"orders-0": (8, 10), "orders-1": (1, 5)}),
    ({"startingOffsetsByTimestamp": '{"orders":{"0":2000,"1":1000}}'}, {"orders-0": (7, 10), "orders-1": (0, 5)}),
    ({"startingTimestamp": "2000"}, {"orders-0": (7, 10), "orders-1": (4, 5)}),
]


@pytest.mark.parametrize("fails_on_loss", ["true", "false"])
@pytest.mark.parametrize("subscription", SUBSCRIPTIONS, ids=lambda given: next(iter(given)))
@pytest.mark.parametrize(("start", "first"), STARTS, ids=lambda found: json.dumps(found))
def test_a_query_reads_from_its_start_what_comes_while_it_is_down_and_what_joins(
    log: FakeLogAccess,
    start: dict[str, str],
    first: dict[str, tuple[int, int]] | None,
    subscription: dict[str, str],
    fails_on_loss: str,
) -> None:
    options = {**start, **subscription, "failOnDataLoss": fails_on_loss}
    query = Query(log, **options).begin()
    assert query.batch() == first
    query = restarted(query, **options)
    assert query.batch() is None
    grow(log, P0, 12)
    query = restarted(query, **options)
    assert query.batch() == {"orders-0": (10, 12)}
    log.create("orders", 12, 6, 3)
    joined = {} if "assign" in subscription else {"orders-2": (0, 3)}
    assert query.batch() == {"orders-1": (5, 6), **joined}
    assert query.batch() is None


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS[1:], ids=lambda given: next(iter(given)))
@pytest.mark.parametrize(
    "start",
    [{"startingTimestamp": "2001"}, {"startingOffsetsByTimestamp": '{"orders":{"0":2001,"1":9223372036854775807}}'}],
    ids=lambda given: next(iter(given)),
)
def test_a_start_after_the_last_record_is_refused_unless_the_end_will_do(
    log: FakeLogAccess, start: dict[str, str], subscription: dict[str, str]
) -> None:
    for strategy in ({}, {"startingoffsetsbytimestampstrategy": "error"}):
        with pytest.raises(OptionError, match="expected a record of orders-0 at or after 2001 ms, found none"):
            Query(log, **start, **subscription, **strategy).begin()
    query = Query(log, **start, **subscription, startingoffsetsbytimestampstrategy="latest").begin()
    assert query.batch() is None
    grow(log, P1, 8)
    assert query.batch() == {"orders-1": (5, 8)}


def test_a_start_below_the_log_stops_the_query_or_is_brought_to_its_first_record(log: FakeLogAccess) -> None:
    log.bounds_of[P0] = Bounds(4, 10)
    start = {"startingOffsets": '{"orders":{"0":0,"1":0}}'}
    with pytest.raises(DataLost, match="orders-0: expected a starting offset from 4 to 10, found 0"):
        Query(log, **start).begin()
    assert Query(log, failOnDataLoss="false", **start).begin().batch() == {"orders-0": (4, 10), "orders-1": (0, 5)}


def test_the_largest_limit_there_is_reads_all_that_waits(log: FakeLogAccess) -> None:
    query = Query(log, startingOffsets='{"orders":{"0":5,"1":5}}', maxOffsetsPerTrigger=str(2**63 - 1)).begin()
    assert query.batch() == {"orders-0": (5, 10)}


# ---------------------------------------------------------------- AvailableNow while the log changes below


@pytest.mark.parametrize("ends", [(10,), (10, 3), (10, 5)], ids=["fewer partitions", "fewer records", "as many"])
def test_available_now_stops_when_its_topic_is_made_again_between_batches(
    log: FakeLogAccess, ends: tuple[int, ...]
) -> None:
    query = Query(log, maxOffsetsPerTrigger="6").begin()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == {"orders-0": (0, 4), "orders-1": (0, 2)}
    log.create("orders", *ends, topic_id="another")
    with pytest.raises(DataLost, match="topic orders was deleted and made again"):
        query.batch()


def test_available_now_ends_although_its_topic_is_made_again_where_losses_are_allowed(log: FakeLogAccess) -> None:
    query = Query(log, failOnDataLoss="false", maxOffsetsPerTrigger="6").begin()
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    log.create("orders", 3, topic_id="another")
    assert query.batch() == {"orders-0": (0, 3)}
    assert query.batch() is None


def test_available_now_runs_an_unfinished_batch_again_although_partitions_were_added_since(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.reader.prepareForTriggerAvailableNow()
    start = query.offset
    unfinished = query.batch()
    log.create("orders", 10, 5, 2)
    again = restarted(query)
    again.reader.prepareForTriggerAvailableNow()
    assert again.ranges(start, query.offset) == unfinished
    assert again.batch() == {"orders-2": (0, 2)}


# ---------------------------------------------------------------- topics come and go


def test_a_pattern_goes_on_with_the_topic_that_takes_the_place_of_a_deleted_one(log: FakeLogAccess) -> None:
    query = Query(log, subscribePattern="orders.*", failOnDataLoss="false").begin()
    query.batch()
    log.delete("orders")
    log.create("orders-eu", 0, 3)
    assert query.batch() == {"orders-eu-1": (0, 3)}


def test_offsets_stay_the_querys_own_when_all_its_topics_are_gone(log: FakeLogAccess) -> None:
    query = Query(log, subscribePattern="orders.*", failOnDataLoss="false").begin()
    query.batch()
    query_id = query.offset[""]["query_id"]
    log.delete("orders")
    assert query.batch() == {}
    assert query.batch() is None
    log.create("orders", 2, topic_id="another")
    query = restarted(query, subscribePattern="orders.*", failOnDataLoss="false")
    assert query.batch() == {"orders-0": (0, 2)}
    assert query.offset[""]["query_id"] == query_id


def test_one_of_many_topics_that_is_made_again_while_the_query_is_down_stops_it(log: FakeLogAccess) -> None:
    log.create("orders-eu", 2)
    query = Query(log, subscribePattern="orders.*").begin()
    query.batch()
    log.create("orders-eu", 1, topic_id="another")
    with pytest.raises(DataLost, match="topic orders-eu was deleted and made again"):
        restarted(query, subscribePattern="orders.*").batch()


class LivingTopics:
    """Topics that grow, end, and are made again; what a query has read of each of them that there ever was."""

    def __init__(self) -> None:
        self.log = FakeLogAccess()
        self.created = 0
        self.read: dict[tuple[str, int], list[int]] = {}

    def create(self, topic: str, partitions: int) -> None:
        if topic not in self.log.facts:
            self.created += 1
            self.log.create(topic, *[0] * partitions, topic_id=f"id {self.created}")

    def delete(self, topic: str) -> None:
        self.log.facts.pop(topic, None)

    def add_partitions(self, topic: str) -> None:
        if topic in self.log.facts:
            facts, ends = self.log.facts[topic], [bounds.end for _, bounds in self._of(topic)]
            self.log.create(topic, *ends, 0, topic_id=facts.topic_id)

    def append(self, topic: str, count: int) -> None:
        for partition, bounds in self._of(topic):
            grow(self.log, partition, bounds.end + count + partition.partition)

    def _of(self, topic: str) -> list[tuple[TopicPartition, Bounds]]:
        facts = self.log.facts.get(topic)
        partitions = [TopicPartition(topic, number) for number in range(facts.partition_count if facts else 0)]
        return [(partition, self.log.bounds_of[partition]) for partition in partitions]

    def note(self, ranges: Mapping[str, tuple[int, int]] | None) -> None:
        for name, (begin, end) in (ranges or {}).items():
            topic, _, number = name.rpartition("-")
            key = (self.log.facts[topic].topic_id, int(number))
            self.read.setdefault(key, []).extend(range(begin, end))

    @property
    def there(self) -> dict[tuple[str, int], list[int]]:
        return {
            (facts.topic_id, partition.partition): list(range(bounds.end))
            for topic, facts in self.log.facts.items()
            for partition, bounds in self._of(topic)
            if bounds.end
        }


topics = st.sampled_from(["live-a", "live-b", "live-c"])
steps = st.lists(
    st.tuples(st.just("create"), topics, st.integers(1, 3))
    | st.tuples(st.just("delete"), topics)
    | st.tuples(st.just("add_partitions"), topics)
    | st.tuples(st.just("append"), topics, st.integers(0, 9))
    | st.tuples(st.just("batch"), st.none() | st.integers(1, 10))
    | st.tuples(st.just("restart")),
    max_size=30,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(steps)
def test_whatever_comes_and_goes_each_record_that_stays_is_read_once_and_in_order(history: list[Any]) -> None:
    living = LivingTopics()
    living.create("live-a", 2)
    living.append("live-a", 3)
    options = {"subscribePattern": "live-.*", "failOnDataLoss": "false"}
    query = Query(living.log, **options).begin()
    for kind, *values in history:
        match kind:
            case "batch":
                (limit,) = values
                living.note(query.batch(None if limit is None else ReadMaxRows(limit)))
            case "restart":
                query = restarted(query, **options)
            case _:
                getattr(living, kind)(*values)
    while (ranges := query.batch()) is not None:
        living.note(ranges)
    alive = {key: offsets for key, offsets in living.read.items() if key in living.there}
    assert alive == living.there
    assert all(offsets == list(range(len(offsets))) for offsets in living.read.values())
