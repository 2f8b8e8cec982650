"""A streaming query over topics: which offsets each micro-batch takes, and what it does about a log that changed.

Guards two promises. Offsets only grow, and a batch that Spark runs again reads the same records. And nothing is passed
over silently: records that retention took before they were read, and a topic that was deleted or made again, stop the
query or are counted, as failOnDataLoss says. Runs in the driver's planning process; `read` runs in tasks.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, LogAccess
from bus.spark.source.inputs import BusInput, open_access, plan_input, read_input
from bus.spark.source.options import OptionError, SourceOptions
from bus.spark.source.planning import limit_offsets, ranges_between
from bus.spark.source.positions import (
    KafkaOffsets,
    NotOffsets,
    QueryOffsets,
    decode_partitions,
    decode_query_offsets,
)
from bus.spark.source.progress import QueryProgress
from bus.spark.source.rows import RowColumns
from bus.spark.source.starting import Selection, resolve, select

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_MAX_S = 5.0


class DataLost(RuntimeError):
    """Records that the query has not read are gone, or are not those of the topic that it began with."""


@dataclass(frozen=True, slots=True)
class _LogNow:
    """The partitions of the query and their bounds, at one moment."""

    selection: Selection
    bounds: Mapping[TopicPartition, Bounds]


class BusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, columns: RowColumns, *, cores: int) -> None:
        self._options = options
        self._columns = columns
        self._cores = cores
        self._access: LogAccess | None = None
        self._progress: QueryProgress | None = None
        self._target: Mapping[TopicPartition, int] | None = None  # of Trigger.AvailableNow
        self._waiting_since_s: float | None = None  # for minOffsetsPerTrigger

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: what they need is in their input."""
        return {**self.__dict__, "_access": None, "_progress": None}

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        now = self._patiently(self._look)
        access = self._opened()
        offsets = self._patiently(
            lambda: resolve(
                options.start,
                now.bounds,
                access,
                is_late_latest=options.is_late_start_latest,
            )
        )
        for partition, offset in offsets.items():
            bounds = now.bounds[partition]
            if not bounds.begin <= offset <= bounds.end:
                message = f"{partition}: expected a starting offset from {bounds.begin} to {bounds.end}, found {offset}"
                if options.fail_on_data_loss:
                    raise OptionError(f"startingOffsets: {message}")
                _log.warning("%s", message)
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
        now = self._patiently(self._look)
        begun = self._check_topics(begun, now.selection)
        begin = self._begin(begun, now)
        end = {partition: max(now.bounds[partition].end, begin[partition]) for partition in begin}
        if self._target is not None:
            # What has joined since then is the next run's.
            end = {name: min(found, self._target.get(name, begin[name])) for name, found in end.items()}
        if self._is_waiting(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(begin, end, limit.max_rows)
        offsets = {**begun.offsets, **end}
        latest = replace(begun, offsets=offsets)
        return start if latest.encode() == start else latest.encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            now = self._look()
        except BusError:
            return None  # a figure of the query's status, no more
        return QueryOffsets(
            {partition: bounds.end for partition, bounds in now.bounds.items()}, now.selection.topic_ids, query_id=""
        ).encode()

    def prepareForTriggerAvailableNow(self) -> None:
        now = self._patiently(self._look)
        self._target = {partition: bounds.end for partition, bounds in now.bounds.items()}

    def commit(self, end: dict[str, Any]) -> None:
        """The batch is done: tell of it. What cannot be told now the next batch tells."""
        if self._options.has_progress:
            self._progress = self._progress or QueryProgress(self._options, self._opened())
            self._progress.commit(self._decode(end))

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None

    # ------------------------------------------------------------------ a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = self._decode(start), self._decode(end)
        now = self._patiently(lambda: self._bounds_of(ended))
        begin = {partition: begun.offsets.get(partition, 0) for partition in ended.offsets}
        begin = self._check_bounds(begin, ended.offsets, now)
        access = self._opened()
        ranges = ranges_between(begin, ended.offsets)
        return self._patiently(lambda: plan_input(ranges, access, self._options, cores=self._cores))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BusInput), f"expected an input of this source, found {partition}"
        yield from read_input(partition, self._columns)

    # ------------------------------------------------------------------ the log

    def _opened(self) -> LogAccess:
        if self._access is None:
            self._access = open_access(self._options.location)
        return self._access

    def _look(self) -> _LogNow:
        access = self._opened()
        selection = select(self._options.subscription, access.topics())
        return _LogNow(selection, access.bounds(selection.partitions))

    def _bounds_of(self, ended: QueryOffsets) -> Mapping[TopicPartition, Bounds]:
        return self._opened().bounds(tuple(ended.offsets))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Asks again while the broker is gone, for as long as the options say."""
        deadline = time.monotonic() + self._options.patience_ms / 1000
        delay_s = self._options.retry_interval_ms / 1000
        while True:
            try:
                return ask()
            except BusError as error:
                is_gone = error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not is_gone or time.monotonic() + delay_s >= deadline:
                    raise
                _log.warning("asking again in %.1f s: %s", delay_s, error)
                time.sleep(delay_s)
                delay_s = min(max(delay_s, 0.1) * 2, _RETRY_MAX_S)

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
            selection = self._patiently(self._look).selection
            return QueryOffsets(decode_partitions(data, "an offset"), selection.topic_ids, query_id=str(uuid.uuid4()))
        except NotOffsets as error:
            raise OptionError(f"expected a checkpoint of the bus source: {error}") from None

    def _check_topics(self, begun: QueryOffsets, selection: Selection) -> QueryOffsets:
        """Without the partitions of topics that are gone, or that are other ones now."""
        kept = dict(begun.offsets)
        for topic, topic_id in begun.topic_ids.items():
            found = selection.topic_ids.get(topic)
            if found == topic_id:
                continue
            what = "was deleted" if found is None else "was deleted and made again"
            self._lose(f"topic {topic} {what}, or is not subscribed to any more")
            kept = {partition: offset for partition, offset in kept.items() if partition.topic != topic}
        return replace(begun, offsets=kept, topic_ids=selection.topic_ids)

    def _begin(self, begun: QueryOffsets, now: _LogNow) -> dict[TopicPartition, int]:
        """Where each partition of now goes on; one that has joined begins with its first record."""
        return {partition: begun.offsets.get(partition, 0) for partition in now.bounds}

    def _check_bounds(
        self,
        begin: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, int]:
        checked = dict(begin)
        for partition in end:
            found = bounds[partition]
            if end[partition] > found.end:
                self._lose(f"{partition}: expected records up to {end[partition]}, found the log's end at {found.end}")
            if begin[partition] < found.begin:
                upto = min(found.begin, end[partition])
                if upto > begin[partition]:
                    self._lose(
                        f"{partition}: records {begin[partition]} to {upto - 1} were not read and are gone, "
                        f"the log begins at {found.begin}"
                    )
                checked[partition] = upto
        return checked

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}; failOnDataLoss=false goes on without them")
        _log.warning("data lost: %s", what)

    def _is_waiting(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: ReadLimit
    ) -> bool:
        """For as many records as minOffsetsPerTrigger, but no longer than maxTriggerDelay."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waiting = sum(end[partition] - begin[partition] for partition in end)
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        is_over = (now_s - self._waiting_since_s) * 1000 >= self._options.max_trigger_delay_ms
        if waiting >= least or (waiting and is_over):
            self._waiting_since_s = now_s
            return False
        return True
