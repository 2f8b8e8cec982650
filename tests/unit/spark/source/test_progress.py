from __future__ import annotations

import logging

import pytest

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.positions import QueryOffsets
from bus.spark.source.source_options import parse_source_options
from bus.spark.source.stream import QueryProgress
from tests.support.fake_log_access import FakeLogAccess

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def progress(log: FakeLogAccess, **options: str) -> QueryProgress:
    given = {"bus.root": "/log", "subscribe": "orders", **options}
    return QueryProgress(parse_source_options(given, is_stream=True), log)


def done(first: int, second: int, topic_id: str = "id-1") -> QueryOffsets:
    return QueryOffsets({P0: first, P1: second}, {"orders": topic_id}, query_id="q7")


@pytest.fixture
def log() -> FakeLogAccess:
    return FakeLogAccess()


def test_a_query_is_a_group_of_its_own_unless_it_has_a_name(log: FakeLogAccess) -> None:
    progress(log).commit(done(1, 2))
    progress(log, groupIdPrefix="nightly").commit(done(3, 4))
    progress(log, **{"bus.group.id": "sales", "groupIdPrefix": "nightly"}).commit(done(5, 6))
    assert log.groups == {
        "spark-bus-source-q7": {P0: 1, P1: 2},
        "nightly-q7": {P0: 3, P1: 4},
        "sales": {P0: 5, P1: 6},
    }


def test_only_what_is_new_is_told(log: FakeLogAccess) -> None:
    told = progress(log)
    told.commit(done(1, 2))
    log.groups.clear()
    told.commit(done(1, 3))
    told.commit(done(1, 3))
    assert log.groups == {"spark-bus-source-q7": {P1: 3}}
    assert log.asked == ["progress", "progress"]


def test_what_could_not_be_told_comes_with_the_next_batch(log: FakeLogAccess, caplog: pytest.LogCaptureFixture) -> None:
    told = progress(log)
    told.commit(done(1, 2))
    log.faults = [BusError(ErrorCode.NON_EMPTY_GROUP, "it has members")] * 2
    with caplog.at_level(logging.WARNING):
        told.commit(done(2, 2))
        told.commit(done(3, 2))
    assert caplog.text.count("progress of group spark-bus-source-q7 is not shown: NON_EMPTY_GROUP") == 1
    told.commit(done(3, 2))
    assert log.groups["spark-bus-source-q7"] == {P0: 3, P1: 2}


def test_a_topic_that_was_made_again_is_told_anew(log: FakeLogAccess) -> None:
    told = progress(log)
    told.commit(done(1, 2))
    log.groups.clear()
    told.commit(done(1, 2, topic_id="id-2"))
    assert log.groups["spark-bus-source-q7"] == {P0: 1, P1: 2}
