"""The planner's side of a streaming query, over a log in memory."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds
from bus.spark.source.inputs import BusInput
from bus.spark.source.planning import OffsetRange
from bus.spark.source.source_options import OptionError
from bus.spark.source.stream import DataLost
from tests.support.fake_log_access import FakeLogAccess
from tests.support.planned_query import Query

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ALL = ReadAllAvailable()


@pytest.fixture
def log() -> FakeLogAccess:
    log = FakeLogAccess()
    log.create("orders", 10, 5)
    return log


def grow(log: FakeLogAccess, partition: TopicPartition, end: int) -> None:
    log.bounds_of[partition] = Bounds(log.bounds_of[partition].begin, end)


def cut(log: FakeLogAccess, partition: TopicPartition, log_start: int) -> None:
    log.bounds_of[partition] = Bounds(log_start, log.bounds_of[partition].end)


# ---------------------------------------------------------------- offsets


def test_a_query_begins_at_the_end_unless_it_says_otherwise(log: FakeLogAccess) -> None:
    query = Query(log, startingOffsets="latest").begin()
    assert query.batch() is None
    grow(log, P1, 7)
    assert query.batch() == {"orders-1": (5, 7)}
    assert Query(log).begin().batch() == {"orders-0": (0, 10), "orders-1": (0, 7)}


def test_where_nothing_came_the_offset_stays(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.batch()
    assert query.reader.latestOffset(query.offset, ALL) == query.offset


def test_a_restarted_query_goes_on_in_the_same_group(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.batch()
    restarted = Query(log, startingOffsets="latest")
    restarted.offset = query.offset
    assert restarted.batch() is None
    grow(log, P0, 12)
    assert restarted.batch() == {"orders-0": (10, 12)}
    assert restarted.offset[""]["query_id"] == query.offset[""]["query_id"]


def test_two_queries_have_names_of_their_own(log: FakeLogAccess) -> None:
    first, second = Query(log).begin(), Query(log).begin()
    assert first.offset[""]["query_id"] != second.offset[""]["query_id"]


def test_a_batch_that_runs_again_reads_the_same_however_much_has_come(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    start = query.offset
    first = query.batch()
    grow(log, P0, 100)
    assert Query(log).ranges(start, query.offset) == first


def test_a_batch_that_runs_again_is_shared_by_tasks_as_before_wherever_it_runs(log: FakeLogAccess) -> None:
    def shares(query: Query, start: dict[str, Any], end: dict[str, Any]) -> list[list[OffsetRange]]:
        inputs = [task for task in query.reader.partitions(start, end) if isinstance(task, BusInput)]
        return [[planned.offsets for planned in task.ranges] for task in inputs]

    grow(log, P0, 400_000)
    first = Query(log, cores=4, **{"bus.splitPartitions": "true"}).begin()
    start = first.offset
    first.batch()
    planned = shares(first, start, first.offset)
    assert len(planned) == 4
    elsewhere = Query(log, cores=2, minPartitions="7").begin()
    assert shares(elsewhere, start, first.offset) == planned
    elsewhere.offset = first.offset
    assert elsewhere.batch() is None, "another machine alone is no news"
    grow(log, P0, 800_000)
    elsewhere.batch()
    assert len(shares(elsewhere, first.offset, elsewhere.offset)) == 7


def test_a_first_batch_reads_what_it_was_planned_with_wherever_a_query_would_begin_by_now(log: FakeLogAccess) -> None:
    query = Query(log, startingOffsets="latest").begin()
    grow(log, P0, 13)
    first = query.batch()
    assert first == {"orders-0": (10, 13)}
    for end in (13, 20):  # Spark asks again when it plans the batch, and when it runs it again after a restart
        grow(log, P0, end)
        assert Query(log).ranges(Query(log, startingOffsets="latest").begin().offset, query.offset) == first
    assert query.batch() == {"orders-0": (13, 20)}


def test_records_that_went_before_a_first_batch_ran_again_are_a_loss(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.batch()
    cut(log, P0, 4)
    with pytest.raises(DataLost, match="orders-0: records 0 to 3 were not read and are gone"):
        Query(log).ranges(Query(log).begin().offset, query.offset)


def test_a_starting_offset_beyond_the_log_stops_the_query_or_is_brought_back(log: FakeLogAccess) -> None:
    wanted = {"startingOffsets": '{"orders":{"0":11,"1":3}}'}
    with pytest.raises(DataLost, match="orders-0: expected a starting offset from 0 to 10, found 11"):
        Query(log, **wanted).begin()
    query = Query(log, failOnDataLoss="false", **wanted).begin()
    assert query.offset["orders"] == {"0": 10, "1": 3}


def test_a_topic_that_is_not_there_is_refused_at_the_start(log: FakeLogAccess) -> None:
    with pytest.raises(BusError, match="expected a topic, found 'order'; topics there: orders"):
        Query(log, subscribe="order").begin()


def test_the_status_shows_the_ends_that_the_last_trigger_saw(log: FakeLogAccess) -> None:
    query = Query(log, maxOffsetsPerTrigger="2").begin()
    assert query.reader.reportLatestOffset() is None
    query.batch()
    asked = len(log.asked)
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert (reported["orders"], len(log.asked)) == ({"0": 10, "1": 5}, asked)


def test_what_a_query_has_done_is_told_when_it_asks_for_more(log: FakeLogAccess) -> None:
    query = Query(log, **{"bus.group.id": "sales", "maxOffsetsPerTrigger": "3"}).begin()
    query.batch()
    assert log.groups == {"sales": {P0: 0, P1: 0}}  # the first batch is planned, not done
    query.batch()
    assert log.groups == {"sales": {P0: 2, P1: 1}}
    query.batch(ALL)
    assert query.batch() is None
    assert log.groups == {"sales": {P0: 10, P1: 5}}


def test_progress_is_of_topics_that_are_there(log: FakeLogAccess) -> None:
    log.create("alerts", 2)
    query = Query(log, **{"bus.group.id": "sales", "subscribe": "orders,alerts", "failOnDataLoss": "false"}).begin()
    query.batch()
    log.delete("alerts")
    log.groups.clear()
    query.batch()
    assert log.groups == {"sales": {P0: 10, P1: 5}}


def test_a_query_that_wants_no_group_tells_nobody(log: FakeLogAccess) -> None:
    query = Query(log, **{"bus.progress": "false"}).begin()
    query.batch()
    query.batch()
    assert log.groups == {}


# ---------------------------------------------------------------- limits


def test_a_limit_of_offsets_is_shared(log: FakeLogAccess) -> None:
    query = Query(log, maxOffsetsPerTrigger="3").begin()
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert query.batch() == {"orders-0": (0, 2), "orders-1": (0, 1)}
    assert query.batch() == {"orders-0": (2, 4), "orders-1": (1, 2)}


def test_without_limits_all_is_read(log: FakeLogAccess) -> None:
    assert Query(log).reader.getDefaultReadLimit() == ALL
    query = Query(log, maxOffsetsPerTrigger="3").begin()
    assert query.batch(ALL) == {"orders-0": (0, 10), "orders-1": (0, 5)}  # Trigger.Once


def test_once_does_not_wait_for_enough(log: FakeLogAccess) -> None:
    query = Query(log, minOffsetsPerTrigger="9").begin()
    query.batch()
    grow(log, P0, 11)
    assert query.batch() is None
    assert query.batch(ALL) == {"orders-0": (10, 11)}


def test_a_trigger_waits_for_enough_offsets_but_not_for_ever(log: FakeLogAccess) -> None:
    query = Query(log, minOffsetsPerTrigger="4", maxTriggerDelay="60s").begin()
    assert query.reader.getDefaultReadLimit() == ReadMinRows(4)
    assert query.batch() is not None  # the first one is at once
    grow(log, P0, 13)
    assert query.batch() is None
    query.now_s += 59
    assert query.batch() is None
    grow(log, P0, 14)
    assert query.batch() == {"orders-0": (10, 14)}  # enough
    query.now_s += 30
    grow(log, P0, 15)
    assert query.batch() is None
    query.now_s += 30
    assert query.batch() == {"orders-0": (14, 15)}  # long enough
    query.now_s += 100
    assert query.batch() is None  # nothing waits


def test_both_limits_hold_together(log: FakeLogAccess) -> None:
    query = Query(log, minOffsetsPerTrigger="4", maxOffsetsPerTrigger="6").begin()
    assert query.batch() == {"orders-0": (0, 4), "orders-1": (0, 2)}
    grow(log, P0, 11)
    assert query.batch() == {"orders-0": (4, 8), "orders-1": (2, 3)}
    assert query.batch() == {"orders-0": (8, 11), "orders-1": (3, 5)}
    grow(log, P0, 14)
    assert query.batch() is None


def test_available_now_reads_what_is_there_and_not_what_comes_meanwhile(log: FakeLogAccess) -> None:
    query = Query(log, maxOffsetsPerTrigger="9", minOffsetsPerTrigger="9").begin()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == {"orders-0": (0, 6), "orders-1": (0, 3)}
    grow(log, P0, 50)
    log.create("orders", 50, 5, 5)
    assert query.batch() == {"orders-0": (6, 10), "orders-1": (3, 5)}
    assert query.batch() is None


def test_available_now_ends_where_a_run_before_it_has_read_further(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.reader.prepareForTriggerAvailableNow()
    grow(log, P0, 20)
    query.offset["orders"] = {"0": 15, "1": 5}
    assert query.batch() is None


# ---------------------------------------------------------------- topics come and go


def test_partitions_that_are_added_join_with_their_first_record(log: FakeLogAccess) -> None:
    query = Query(log, startingOffsets="latest").begin()
    log.create("orders", 10, 5, 3)
    assert query.batch() == {"orders-2": (0, 3)}


def test_topics_that_match_a_pattern_join_with_their_first_record(log: FakeLogAccess) -> None:
    query = Query(log, subscribePattern="orders.*", startingOffsets="latest").begin()
    log.create("orders-eu", 4)
    log.create("__orders", 4, is_internal=True)
    assert query.batch() == {"orders-eu-0": (0, 4)}


def test_a_topic_that_was_made_again_stops_the_query(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.batch()
    log.create("orders", 20, 5, topic_id="another")
    with pytest.raises(DataLost, match=r"topic orders was deleted and made again.*failOnDataLoss=false goes on"):
        query.batch()


def test_a_topic_that_was_made_again_is_read_from_its_start_where_losses_are_allowed(log: FakeLogAccess) -> None:
    query = Query(log, failOnDataLoss="false").begin()
    query.batch()
    log.create("orders", 3, 5, topic_id="another")
    assert query.batch() == {"orders-0": (0, 3), "orders-1": (0, 5)}
    assert query.batch() is None


def test_a_topic_that_was_deleted_stops_the_query(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    log.delete("orders")
    with pytest.raises(DataLost, match="topic orders was deleted"):
        query.batch()


class WithoutOrdersInBetween(FakeLogAccess):
    """The topic goes away after it was looked for, and before it is asked how far it goes."""

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        if P0 in partitions and "bounds" in self.asked:
            self.facts.pop("orders", None)
        return super().bounds(partitions)


def test_a_topic_that_is_deleted_between_two_questions_stops_the_query_by_name() -> None:
    log = WithoutOrdersInBetween()
    log.create("orders", 10, 5)
    query = Query(log).begin()
    with pytest.raises(DataLost, match="topic orders was deleted"):
        query.batch()


def test_a_topic_that_was_deleted_is_left_out_where_losses_are_allowed(log: FakeLogAccess) -> None:
    log.create("alerts", 2)
    query = Query(log, subscribe="orders,alerts", failOnDataLoss="false").begin()
    query.batch()
    log.delete("orders")
    grow(log, TopicPartition("alerts", 0), 3)
    assert query.batch() == {"alerts-0": (2, 3)}
    log.create("orders", 1, topic_id="another")
    assert query.batch() == {"orders-0": (0, 1)}


def test_a_topic_made_again_between_planning_and_reading_is_never_read_for_the_other(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    start = query.offset
    query.batch()
    log.create("orders", 100, 100, topic_id="another")
    with pytest.raises(DataLost, match="topic orders was deleted and made again"):
        query.ranges(start, query.offset)
    assert Query(log, failOnDataLoss="false").ranges(start, query.offset) == {}


# ---------------------------------------------------------------- losses


def test_records_that_retention_took_stop_the_query_with_their_offsets(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    cut(log, P0, 4)
    with pytest.raises(DataLost, match="orders-0: records 0 to 3 were not read and are gone, the log begins at 4"):
        query.batch()


def test_losses_are_counted_told_once_and_passed(log: FakeLogAccess, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(log, failOnDataLoss="false").begin()
    cut(log, P0, 4)
    with caplog.at_level(logging.WARNING):
        assert query.batch() == {"orders-0": (4, 10), "orders-1": (0, 5)}
    assert [record.getMessage() for record in caplog.records] == [
        "data lost: orders-0: records 0 to 3 were not read and are gone, the log begins at 4"
    ]
    assert query.lost == 4
    grow(log, P0, 12)
    cut(log, P0, 11)
    assert query.batch() == {"orders-0": (11, 12)}
    assert query.lost == 5


def test_records_that_go_after_the_batch_was_planned_are_counted_too(log: FakeLogAccess) -> None:
    query = Query(log, failOnDataLoss="false").begin()
    start = query.offset
    query.offset = query.reader.latestOffset(start, ALL)
    cut(log, P0, 4)
    assert query.ranges(start, query.offset) == {"orders-0": (4, 10), "orders-1": (0, 5)}
    grow(log, P0, 11)
    assert query.batch() == {"orders-0": (10, 11)}
    assert query.lost == 4


def test_all_records_may_be_gone(log: FakeLogAccess) -> None:
    query = Query(log, failOnDataLoss="false").begin()
    cut(log, P0, 10)
    cut(log, P1, 5)
    assert query.batch() == {}
    assert (query.lost, query.batch()) == (15, None)


# ---------------------------------------------------------------- a broker that is gone

GONE = BusError(ErrorCode.NETWORK_EXCEPTION, "no broker answers")


def test_a_query_waits_for_a_broker_that_is_gone_for_a_while(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    log.faults = [GONE] * 14
    assert query.batch() == {"orders-0": (0, 10), "orders-1": (0, 5)}
    assert 55 < sum(query.slept_s) < 70
    assert max(query.slept_s) == 5


def test_a_broker_that_stays_away_stops_the_query_in_the_end(log: FakeLogAccess) -> None:
    query = Query(log, **{"kafkaConsumer.pollTimeoutMs": "20000"}).begin()
    log.faults = [GONE] * 100
    with pytest.raises(BusError, match="no broker answers"):
        query.batch()
    assert 20 <= sum(query.slept_s) <= 25


def test_a_question_is_asked_again_as_often_as_the_options_say(log: FakeLogAccess) -> None:
    options = {"kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "10"}
    query = Query(log, **options).begin()
    log.faults = [GONE] * 2
    assert query.batch() is not None
    log.faults = [GONE] * 3
    with pytest.raises(BusError):
        query.batch()
    assert query.slept_s == [0.01, 0.2] * 2


def test_what_asking_again_does_not_change_is_raised_at_once(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    log.faults = [BusError(ErrorCode.INVALID_REQUEST, "no")]
    with pytest.raises(BusError, match="INVALID_REQUEST"):
        query.batch()
    assert query.slept_s == []


def test_a_topic_made_again_while_a_batch_is_planned_is_never_read_for_the_other(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    start = query.offset
    query.batch()

    class AndMadeAgain(FakeLogAccess):
        def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
            self.create("orders", 100, 100, topic_id="another")
            return super().bounds(partitions)

    made_again = AndMadeAgain()
    made_again.create("orders", 10, 5)
    with pytest.raises(DataLost, match="topic orders was deleted and made again"):
        Query(made_again).ranges(start, query.offset)
    made_again.create("orders", 10, 5)
    assert Query(made_again, failOnDataLoss="false").ranges(start, query.offset) == {}


def test_stopping_closes_what_was_opened(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    query.reader.stop()
    assert log.is_closed


# ---------------------------------------------------------------- checkpoints of others


def test_a_checkpoint_of_a_kafka_query_is_refused_with_the_way_to_take_it_over(log: FakeLogAccess) -> None:
    query = Query(log)
    query.offset = {"orders": {"0": 4, "1": 5}}
    with pytest.raises(OptionError, match=r"one of Spark's Kafka source; bus.adoptKafkaOffsets=true goes on at its"):
        query.batch()


def test_offsets_of_a_kafka_query_are_taken_over_where_that_was_asked_for(log: FakeLogAccess) -> None:
    query = Query(log, **{"bus.adoptKafkaOffsets": "true"})
    query.offset = {"orders": {"0": 4, "1": 5}}
    assert query.batch() == {"orders-0": (4, 10)}
    grow(log, P1, 6)
    assert query.batch() == {"orders-1": (5, 6)}
    assert query.offset[""]["topic_ids"] == {"orders": "id of orders"}


def test_topics_of_a_kafka_query_that_are_not_here_are_a_loss(log: FakeLogAccess) -> None:
    query = Query(log, **{"bus.adoptKafkaOffsets": "true"})
    query.offset = {"orders": {"0": 4, "1": 5}, "alerts": {"0": 1}}
    with pytest.raises(DataLost, match="topic alerts was deleted, or is not subscribed to any more"):
        query.batch()


@pytest.mark.parametrize("data", [{"logOffset": 5}, {"orders": {"0": 1}, "": {}}, {"sourceVersion": 1, "index": 3}])
def test_a_checkpoint_of_another_source_is_refused(log: FakeLogAccess, data: dict[str, Any]) -> None:
    query = Query(log, **{"bus.adoptKafkaOffsets": "true"})
    query.offset = data
    with pytest.raises(OptionError, match="expected a checkpoint of the bus source"):
        query.batch()


def test_a_checkpoint_of_another_topic_stops_the_query(log: FakeLogAccess) -> None:
    query = Query(log).begin()
    log.create("alerts", 3)
    other = Query(log, subscribe="alerts")
    other.offset = query.offset
    with pytest.raises(DataLost, match="topic orders was deleted, or is not subscribed to any more"):
        other.batch()
