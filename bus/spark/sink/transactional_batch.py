"""A batch of Spark's as one transaction: tasks hand their rows to the driver, which writes all of them.

Theory of operation. A transaction is one producer's, and the rows that it has in a partition are counted one by one: no
two tasks can write one. So a task places its rows, and gives them to the driver with its message that it is done; what
tasks that failed, or ran twice, have made is dropped with their messages. When all are done, the driver begins the
transaction, sends all rows, commits the number of the batch as an offset of a group of the query's own, with the rows,
and ends it.

Guards two promises. All rows of a batch can be read, or none ever: of whatever fails before the decision, nothing is
left. And a batch is written once, however often it runs, with the same rows or with others: before a run sends
anything, it ends and fences the run before it (`init_transactions`), and then asks for the number of the last batch
that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from bus.client.config.security import security_settings
from bus.client.config.sources import only_settings_of_connections
from bus.client.connection.retrying import monotonic_ms
from bus.client.consumer.consumer import Consumer
from bus.client.producer.producer import Producer
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TRANSACTION_STATE_TOPIC, TopicPartition
from bus.platform.reentry import logger_of
from bus.spark.sink.columns import RowRefused, SinkColumns
from bus.spark.sink.sink_options import Application, SinkOptions
from bus.spark.sink.stamped_writer import TaskIdentity, partition_count
from bus.spark.sink.task import number_rows
from bus.spark.workers import settled_worker

logger = logger_of(__name__)

_TASK_BYTES_MAX = 256 << 20
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# The number of the last batch is committed as if it were an offset of this partition, which is there as long as there
# are transactions.
_PROOF = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class CollectedPart:
    """Rows of one task in one partition: an Arrow stream."""

    partition: TopicPartition
    arrow: bytes


def collect_rows(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, identity: TaskIdentity
) -> tuple[int, tuple[CollectedPart, ...]]:
    """Collect the rows of a task, and return how many, and the rows. Sends nothing. Raises `RowRefused`, or
    `BusError`."""
    collector = _Collector(options)
    with settled_worker(keeps_memory=False):
        count = number_rows((batch for batch in batches if batch.num_rows), columns, options, identity, collector)
        return count, collector.parts()


class _Collector:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._rows: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._bytes = 0

    def partition_count(self, topic: str) -> int:
        return partition_count(self._options, topic)

    def send(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        self._bytes += records.nbytes
        if self._bytes > _TASK_BYTES_MAX:
            raise RowRefused(
                f"bus.transactional: expected at most {_TASK_BYTES_MAX >> 20} MiB of rows in a task, since they go "
                "through the driver, found more; make batches smaller (maxOffsetsPerTrigger), or leave the option out: "
                "the sink is exactly-once without it"
            )
        self._rows.setdefault(partition, []).append(records)

    def flush(self) -> None: ...

    def parts(self) -> tuple[CollectedPart, ...]:
        return tuple(CollectedPart(partition, encode_rows(rows)) for partition, rows in sorted(self._rows.items()))


def encode_rows(rows: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows[0].schema, options=options) as stream:
        for batch in rows:
            stream.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def commit_parts(parts: Sequence[CollectedPart], options: SinkOptions, application: Application) -> bool:
    """On the driver: write all of them in one transaction, those of a partition in their order. False if this version
    of the application is written already. Raises `BusError`: nothing is written, or, if that could not be found out,
    the next run of the version will find it out."""
    name = f"spark.{application.name}"
    group_id = f"spark-bus-sink-{application.name}"
    deadline_ms = monotonic_ms() + options.config.delivery_timeout_ms
    with only_settings_of_connections():
        own = Producer(list(options.addresses), **_configs(options), transactional_id=name)
    with own as producer:
        producer.init_transactions()
        if _is_written(options, group_id, application):
            logger.info("%s: version %d is written already", name, application.version)
            return False
        try:
            _write(producer, parts, group_id, application)
            _commit(producer, deadline_ms)
        except BusError as error:
            if error.code not in _FENCED:
                raise
            raise BusError(
                ErrorCode.PRODUCER_FENCED,
                f"{name}, batch {application.version}: {error.message}. Another run has begun, and decides about this "
                "batch; or the transaction has timed out (kafka.transaction.timeout.ms)",
            ) from error
    return True


def _write(producer: Producer, parts: Sequence[CollectedPart], group_id: str, application: Application) -> None:
    producer.begin_transaction()
    for part in parts:
        with pa.ipc.open_stream(part.arrow) as stream:
            rows = stream.read_all()
        producer.send_batch(part.partition.topic, rows, part.partition.partition)
    proof = OffsetAndMetadata(application.version + 1, "number of the next batch")
    producer.send_offsets_to_transaction({_PROOF: proof}, GroupMetadata(group_id))


def _commit(producer: Producer, deadline_ms: float) -> None:
    while True:
        try:
            producer.commit_transaction()
            return
        except BusError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or monotonic_ms() >= deadline_ms:
                raise


def _configs(options: SinkOptions) -> dict[str, Any]:
    """The options that are no defaults. The time for which it tries is one setting of the sink."""
    config = options.config
    found = {each.name: getattr(config, each.name) for each in fields(config)}
    given = {each.name for each in fields(config) if found[each.name] != each.default}
    configs = {name: found[name] for name in given - {"transactional_id"}}
    return {**configs, "max_request_size": options.part_bytes, "max_block_ms": config.delivery_timeout_ms}


def _is_written(options: SinkOptions, group_id: str, application: Application) -> bool:
    configs = {"group_id": group_id, "isolation_level": "read_committed", **security_settings(options.config)}
    with only_settings_of_connections():
        own = Consumer(list(options.addresses), **configs)
    with own as consumer:
        committed = consumer.committed([_PROOF])[_PROOF]
    if committed is None or application.version >= committed.offset:
        return False
    if application.version == committed.offset - 1:
        return True
    raise BusError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{application.name}: expected a batch above {committed.offset - 1}, the last one that is written, found "
        f"{application.version}: another run of it writes too, or its checkpoint went back. To write it again a query "
        "needs a new checkpoint, and a batch write a higher bus.txnVersion",
    )
