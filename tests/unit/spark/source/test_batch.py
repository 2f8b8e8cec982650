from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from bus.model import TopicPartition
from bus.spark.source.batch import NO_LIMITS, limits_of
from bus.spark.source.planning import OffsetRange
from tests.support.fake_log_access import FakeLogAccess

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
P0, P1, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("alerts", 0)
RANGES = [OffsetRange(P0, 0, 100), OffsetRange(P1, 50, 60), OffsetRange(OTHER, 0, 10)]


def at(milliseconds: float) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


@pytest.fixture
def log() -> FakeLogAccess:
    log = FakeLogAccess()
    # A record of P0 is older than those before it, and the last one is of the time of the first.
    log.times_ms = {P0: [*range(1_000, 1_098), 500, 1_000], P1: [1_000] * 60, OTHER: [1_000] * 10}
    return log


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], [(P0, 0, 100), (P1, 50, 60), (OTHER, 0, 10)]),
        ([EqualTo(("topic",), "orders")], [(P0, 0, 100), (P1, 50, 60)]),
        ([EqualNullSafe(("topic",), "alerts")], [(OTHER, 0, 10)]),
        ([In(("topic",), ("alerts", "other"))], [(OTHER, 0, 10)]),
        ([EqualTo(("topic",), "orders"), EqualTo(("topic",), "alerts")], []),
        ([EqualTo(("partition",), 0)], [(P0, 0, 100), (OTHER, 0, 10)]),
        ([In(("partition",), (1, 2))], [(P1, 50, 60)]),
        ([EqualTo(("offset",), 55)], [(P0, 55, 56), (P1, 55, 56)]),
        ([EqualTo(("offset",), -1)], []),
        ([GreaterThan(("offset",), 55)], [(P0, 56, 100), (P1, 56, 60)]),
        ([GreaterThanOrEqual(("offset",), 55)], [(P0, 55, 100), (P1, 55, 60)]),
        ([LessThan(("offset",), 55)], [(P0, 0, 55), (P1, 50, 55), (OTHER, 0, 10)]),
        ([LessThanOrEqual(("offset",), 55)], [(P0, 0, 56), (P1, 50, 56), (OTHER, 0, 10)]),
        ([GreaterThan(("offset",), 10), LessThan(("offset",), 9)], []),
        ([GreaterThan(("timestamp",), at(1_050))], [(P0, 50, 100)]),
        ([GreaterThanOrEqual(("timestamp",), at(1_050.5))], [(P0, 50, 100)]),
        ([EqualTo(("timestamp",), at(1_097))], [(P0, 97, 100)]),
        ([GreaterThan(("timestamp",), at(2_000))], []),
        ([GreaterThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, 50_000))], [(P0, 50, 100)]),
        ([LessThan(("timestamp",), at(0))], [(P0, 0, 100), (P1, 50, 60), (OTHER, 0, 10)]),
        ([IsNotNull(("key",)), Not(EqualTo(("partition",), 0))], [(P0, 0, 100), (P1, 50, 60), (OTHER, 0, 10)]),
        ([GreaterThan(("headers", "offset"), 50)], [(P0, 0, 100), (P1, 50, 60), (OTHER, 0, 10)]),
    ],
)
def test_filters_limit_what_is_read(log: FakeLogAccess, filters: list[Filter], left: list[Any]) -> None:
    assert limits_of(filters).narrow(RANGES, log) == [OffsetRange(*found) for found in left]


def test_the_log_is_asked_for_times_only() -> None:
    log = FakeLogAccess()
    limits_of([EqualTo(("offset",), 5)]).narrow(RANGES, log)
    assert log.asked == []


def test_no_filters_are_no_limits() -> None:
    assert limits_of([IsNotNull(("offset",))]) == NO_LIMITS


comparisons = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
some_filters = st.lists(
    st.builds(lambda kind, value: kind(("offset",), value), comparisons, st.integers(-5, 25))
    | st.builds(lambda kind, value: kind(("timestamp",), at(value)), comparisons, st.integers(0, 12))
    | st.builds(lambda kind, value: kind(("partition",), value), st.sampled_from([EqualTo]), st.integers(0, 2)),
    max_size=4,
)
PASSES = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
}


@settings(max_examples=3 * settings.default.max_examples)
@given(some_filters, st.lists(st.integers(0, 10), min_size=20, max_size=20))
def test_no_row_that_passes_is_left_out(filters: list[Any], times_ms: list[int]) -> None:
    log = FakeLogAccess()
    log.times_ms = {P0: times_ms, P1: times_ms}
    ranges = [OffsetRange(P0, 0, 20), OffsetRange(P1, 5, 15)]
    left = limits_of(filters).narrow(ranges, log)
    for found in ranges:
        for offset in range(found.begin, found.end):
            row = {"offset": offset, "timestamp": at(times_ms[offset]), "partition": found.partition.partition}
            if all(PASSES[type(wanted)](row[wanted.attribute[0]], wanted.value) for wanted in filters):
                assert any(kept.partition == found.partition and kept.begin <= offset < kept.end for kept in left)
