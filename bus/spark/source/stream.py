"""A streaming query over topics: which offsets each micro-batch takes, and its progress as that of a consumer group.

Guards two promises: offsets only grow, and a batch that Spark runs again reads the same records; and telling a group of
the progress, so that its lag shows where every consumer's does, never stops a query: the checkpoint decides where it
goes on, and what is told was processed. What the log has lost stops the query or is counted, as failOnDataLoss says.
Runs in the driver's planning process; `read` runs in tasks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bus.client.connection.retrying import retry
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.spark.source.access import LogAccess
from bus.spark.source.boundaries import (
    LogNow,
    Loss,
    continue_at,
    ranges_left,
    resolve,
    same_topics,
    select,
    select_known,
)
from bus.spark.source.inputs import BusInput, open_access, plan_input, read_input
from bus.spark.source.planning import limit_offsets
from bus.spark.source.positions import (
    KafkaOffsets,
    NotOffsets,
    QueryOffsets,
    decode_partitions,
    decode_query_offsets,
)
from bus.spark.source.rows import RowColumns
from bus.spark.source.source_options import Location, OptionError, SourceOptions

_log = logger_of(__name__)

T = TypeVar("T")

_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 5.0


class DataLost(RuntimeError):
    """Records that the query has not read are gone, or are not those of the topic that it began with."""


class BusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: SourceOptions,
        columns: RowColumns,
        *,
        cores: int,
        open_log: Callable[[Location], LogAccess] = open_access,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._columns = columns
        self._sharing = options.sharing(cores)
        self._open_log, self._clock, self._sleep = open_log, clock, sleep
        self._access: LogAccess | None = None
        self._progress: QueryProgress | None = None
        self._seen: LogNow | None = None
        self._target: Mapping[TopicPartition, int] | None = None  # of Trigger.AvailableNow
        self._triggered_s: float | None = None  # when a batch was last let through, for maxTriggerDelay
        self._told: set[str] = set()  # losses
        self._uncounted = 0  # lost after their batch had its offsets: the next one's have them
        self._carried = 0  # of that, what is in the offsets of this batch

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        now = self._patiently(self._look_at_all)
        offsets = self._patiently(
            lambda: resolve(options.start, now.bounds, self._opened(), is_late_latest=options.is_late_start_latest)
        )
        for partition, offset in offsets.items():
            bounds = now.bounds[partition]
            if not bounds.begin <= offset <= bounds.end:
                self._tell(
                    [
                        Loss(
                            f"{partition}: expected a starting offset from {bounds.begin} to {bounds.end}, "
                            f"found {offset}"
                        )
                    ]
                )
                offsets[partition] = min(max(offset, bounds.begin), bounds.end)
        return QueryOffsets(offsets, now.selection.topic_ids, query_id=str(uuid.uuid4())).encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """minOffsetsPerTrigger comes into it in `latestOffset`, which may combine the two; Spark's limits cannot."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = self._decode(start)
        self._seen = now = self._patiently(self._look)
        self._show_progress(begun, now)
        going = continue_at(begun, now)
        self._tell(going.losses)
        end = {partition: bounds.end for partition, bounds in now.bounds.items()}
        if self._target is not None:
            # What has joined since then is the next run's.
            target = self._target
            end = {name: min(found, target.get(name, going.begin[name])) for name, found in end.items()}
        end = {partition: max(found, going.begin[partition]) for partition, found in end.items()}
        if not going.losses and self._is_waiting(going.begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(going.begin, end, limit.max_rows)
        self._carried, self._uncounted = self._uncounted, 0
        lost = begun.lost + _offsets_of(going.losses) + self._carried
        latest = QueryOffsets(end, now.selection.topic_ids, begun.query_id, lost, begun.sharing, begun.begun)
        if latest == begun:
            return start
        is_first = begun.sharing is None
        return replace(latest, sharing=self._sharing, begun=going.begin if is_first else None).encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends that the last trigger saw, for the query's status: asking again would cost as much as the
        trigger."""
        if self._seen is None:
            return None
        ends = {partition: bounds.end for partition, bounds in self._seen.bounds.items()}
        return QueryOffsets(ends, self._seen.selection.topic_ids, query_id="").encode()

    def prepareForTriggerAvailableNow(self) -> None:
        now = self._patiently(self._look)
        self._target = {partition: bounds.end for partition, bounds in now.bounds.items()}

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None

    def _show_progress(self, done: QueryOffsets, now: LogNow) -> None:
        """Spark asks for the next offsets when the batch before them is done; its own word, commit(), comes only when
        there is a next batch, which would leave the last one open for as long as nothing comes."""
        if not self._options.has_progress:
            return
        self._progress = self._progress or QueryProgress(self._options, self._opened())
        offsets = {partition: done.offsets[partition] for partition in same_topics(done, now.selection.topic_ids)}
        self._progress.commit(replace(done, offsets=offsets))

    # ------------------------------------------------------------------ a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = self._decode(start), self._decode(end)
        return self._patiently(lambda: self._plan(begun, ended))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, BusInput):  # Spark makes an input of its own if there are none
            yield from read_input(partition, self._columns)

    def _plan(self, begun: QueryOffsets, ended: QueryOffsets) -> list[BusInput]:
        if ended.begun is not None:
            # Spark asks again for the initial offset when it plans the first batch, and again if that did not finish.
            begun = replace(begun, offsets=ended.begun, topic_ids=ended.topic_ids)
        access = self._opened()
        topic_ids = {name: facts.topic_id for name, facts in access.topics().items()}
        bounds = access.bounds(same_topics(ended, topic_ids))
        ranges, losses = ranges_left(begun, ended, topic_ids, bounds)
        self._tell(losses)
        counted = ended.lost - begun.lost - self._carried
        self._uncounted = max(_offsets_of(losses) - counted, 0)
        tasks = plan_input(ranges, access, self._options, ended.sharing or self._sharing)
        if _are_of(ended.topic_ids, tasks):
            return tasks
        return self._plan(begun, ended)  # a topic was made again since its id was asked for: now it is told

    # ------------------------------------------------------------------ the log

    def _opened(self) -> LogAccess:
        if self._access is None:
            self._access = self._open_log(self._options.location)
        return self._access

    def _look_at_all(self) -> LogNow:
        """Look at all topics; those that are named have to exist."""
        access = self._opened()
        selection = select(self._options.subscription, access.topics())
        return LogNow(selection, access.bounds(selection.partitions))

    def _look(self) -> LogNow:
        """A running query is told what has gone by comparison with what it knows."""
        access = self._opened()
        selection = select_known(self._options.subscription, access.topics())
        return LogNow(selection, access.bounds(selection.partitions))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Asks again while the broker is gone, for as long and as often as the options say; and once more about a topic
        that went away between two questions: then the first one tells that it is gone."""
        deadline_s = self._clock() + self._options.patience_ms / 1000
        interval_s = self._options.retry_interval_ms / 1000

        def may_retry(attempt: int, error: BusError) -> bool:
            is_over = attempt >= self._options.retries and self._clock() >= deadline_s
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return attempt == 0
            return error.retriable and not is_over

        def pause(attempt: int, error: BusError) -> bool:
            grown_s = min(max(interval_s, _RETRY_MIN_S) * 2 ** min(attempt, 30), _RETRY_MAX_S)
            delay_s = grown_s if attempt else interval_s
            _log.warning("asking again in %.1f s: %s", delay_s, error)
            self._sleep(delay_s)
            return True

        return retry(ask, may_retry=may_retry, pause=pause)

    # ------------------------------------------------------------------ what changed

    def _decode(self, data: dict[str, Any]) -> QueryOffsets:
        try:
            return decode_query_offsets(data)
        except KafkaOffsets:
            if not self._options.adopts_kafka_offsets:
                raise OptionError(
                    "expected a checkpoint of the bus source, found one of Spark's Kafka source; "
                    "bus.adoptKafkaOffsets=true goes on at its offsets"
                ) from None
            return self._adopt(decode_partitions(data, "an offset"))
        except NotOffsets as error:
            raise OptionError(f"expected a checkpoint of the bus source: {error}") from None

    def _adopt(self, offsets: Mapping[TopicPartition, int]) -> QueryOffsets:
        """Take over the offsets of a Kafka query: its topics are those of that name here."""
        selection = self._patiently(self._look).selection
        topic_ids = {partition.topic: selection.topic_ids.get(partition.topic, "") for partition in offsets}
        return QueryOffsets(offsets, topic_ids, query_id=str(uuid.uuid4()))

    def _tell(self, losses: Sequence[Loss]) -> None:
        messages = [loss.message for loss in losses]
        if messages and self._options.fail_on_data_loss:
            raise DataLost(f"{'; '.join(messages)}; failOnDataLoss=false goes on without them")
        for message in messages:
            if message not in self._told:  # planning a batch finds again what led to it
                _log.warning("data lost: %s", message)
        self._told = set(messages)

    def _is_waiting(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: ReadLimit
    ) -> bool:
        """True while fewer records than minOffsetsPerTrigger are there, but no longer than maxTriggerDelay."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waiting = sum(end[partition] - begin[partition] for partition in end)
        now_s = self._clock()
        is_over = self._triggered_s is None or (now_s - self._triggered_s) * 1000 >= self._options.max_trigger_delay_ms
        if waiting >= least or (waiting and is_over):
            self._triggered_s = now_s
            return False
        return True


def _are_of(topic_ids: Mapping[str, str], tasks: Sequence[BusInput]) -> bool:
    planned = [found for task in tasks for found in task.ranges]
    return all(found.topic_id in (None, topic_ids[found.offsets.partition.topic]) for found in planned)


def _offsets_of(losses: Sequence[Loss]) -> int:
    return sum(loss.offsets for loss in losses)


class QueryProgress:
    def __init__(self, options: SourceOptions, access: LogAccess) -> None:
        self._options = options
        self._access = access
        self._told: QueryOffsets | None = None
        self._has_failed = False

    def commit(self, done: QueryOffsets) -> None:
        """Returns without having told anybody if the broker refuses, or does not answer."""
        if self._told is not None and done.topic_ids != self._told.topic_ids:
            self._told = None  # what was committed for a topic that is gone is gone with it
        known = {} if self._told is None else self._told.offsets
        news = {partition: offset for partition, offset in done.offsets.items() if known.get(partition) != offset}
        if not news:
            return
        group_id = self._options.group_id or f"{self._options.group_id_prefix}-{done.query_id}"
        try:
            self._access.tell_progress(group_id, news)
        except BusError as error:
            if not self._has_failed:  # once, not at each batch
                _log.warning("progress of group %s is not shown: %s", group_id, error)
            self._has_failed = True
            return
        self._told, self._has_failed = done, False
