from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.model import TopicPartition
from bus.spark.source.access import Bounds
from bus.spark.source.changes import Continuation, LogNow, Loss, continue_at, ranges_left, same_topics
from bus.spark.source.planning import OffsetRange
from bus.spark.source.positions import QueryOffsets
from bus.spark.source.starting import Selection

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
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
