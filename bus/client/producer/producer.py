"""The producer that users hold: records and batches in, futures out.

Guards the contract of `send` and `send_batch`: what is wrong with the call itself is raised at once and nothing was
sent; everything later comes through the future. Never looks at single records of a batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from bus.client.arguments import check_integer, check_timeout, check_topic, offsets_by_partition, wrong_type
from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import MISSING, EffectiveSetting, client_addresses, describe, parse_with_origins
from bus.client.connection.cluster import Cluster
from bus.client.connection.connections import UnusableConnection
from bus.client.connection.metadata_cache import TopicInfo
from bus.client.connection.processes import Home
from bus.client.connection.retrying import monotonic_ms
from bus.client.interceptors import InterceptorChain, ProducerRecord, close_all
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES, Headers, RecordFuture, headers_bytes
from bus.client.producer.checks import check_bytes, check_headers, check_partition, check_timestamp, one_batch
from bus.client.producer.future import BatchFuture, RunChunk, wait_all
from bus.client.producer.partitioning import record_partitioner_of
from bus.client.producer.threads import ProducerThreads, flush_and_end, forget_producer, watch_producer
from bus.client.producer.transaction_calls import TransactionCalls
from bus.client.producer.transaction_manager import TransactionManager
from bus.client.values import CommittedRows, GroupMetadata, OffsetAndMetadata, check_committed
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import CalledInside, check_outside, logger_of
from bus.serializers import serializer_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import ProducerSettings

logger = logger_of(__name__)

_ENVELOPE_BYTES = 1_024  # schema, metadata and padding of an Arrow stream

ResultT = TypeVar("ResultT")


class Producer:
    """Sends records to topics. Safe to share between threads; one producer for a process is best.

    Idempotent unless told otherwise: each accepted record is in the log exactly once and in the order of the calls,
    through lost answers, retries and restarts of the broker; what a time-out leaves open is said at the future. With
    `name="..."` that holds across restarts of the program as well: the instance that came last is the one that may
    send (older ones get PRODUCER_FENCED), and `last_sequence` tells where the log ends. `acks`: "all" (the default), 1
    or 0; without idempotence delivery is at least once, with `retries=0` at most once.

    With `transactional_id="..."` records are sent in transactions: `init_transactions` once, then `with
    producer.transaction():` around what belongs together. A record's future is done when the record is safely staged,
    without an offset; `commit_transaction` tells where the rows are.

    Takes Kafka's configs with underscores for dots; an unknown one is an error. Raises `BusError` INVALID_CONFIG.
    No connection is made before the first call.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[ProducerSettings]) -> None:
        self._config, self._origins = parse_with_origins(ProducerConfig, configs)
        self._cluster = Cluster(client_addresses(address, configs), self._config)
        self._threads = ProducerThreads(self._cluster, self._config)
        self._engine = self._threads.engine
        self._lock = self._engine.lock
        self._open = self._engine.accumulator.open
        self._partitioner = record_partitioner_of(self._config.partitioner)
        self._serialize_key = serializer_of(self._config.key_serializer, "key")
        self._serialize_value = serializer_of(self._config.value_serializer, "value")
        self._transactions = (
            None
            if self._config.transactional_id is None
            else TransactionCalls(self._cluster, self._config, self._engine)
        )
        self._interceptors = InterceptorChain(self._config.interceptors)
        # Nothing has to be asked for a record of bytes: `send` may put it where the one before it is.
        self._is_plain = (
            self._config.linger_ms > 0
            and self._partitioner is None
            and self._config.key_serializer is None
            and self._config.value_serializer is None
            and not self._config.interceptors
        )
        self._home = Home("producer")
        self._is_closed = False
        watch_producer(self, self._threads)

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """The settings that this client has, by name, each with where it is from: the program, the command line, the
        environment, the profile, or the default. Secrets are hidden."""
        return describe(self._config, self._origins)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; its future gives a `RecordMetadata`.

        Without `partition` the key decides (as Kafka's default partitioner does), without a key the partitions take
        turns, a batch each. Without `timestamp_ms` the record has the time of this call. Waits up to max.block.ms for
        metadata and for buffer.memory. Raises `BusError`, or TypeError and ValueError for arguments that are no record:
        nothing was sent.
        """
        # The way of nearly every record of a program that sends many: nothing to wait for, nothing to ask.
        if (
            type(value) is bytes
            and self._is_plain
            and headers is None
            and partition is None
            and timestamp_ms is None
            and (key is None or type(key) is bytes)
        ):
            size = len(value) + RECORD_OVERHEAD_BYTES
            if key is not None:
                size += len(key)
            try:
                with self._lock:
                    batch = self._open.get(topic) if type(topic) is str else None
                    if batch is not None and (key is None or batch.keys is not None):
                        size += batch.size_bytes
                        if size <= batch.limit_bytes:
                            batch.size_bytes = size
                            values = batch.values
                            try:
                                future = RecordFuture(batch, len(values))
                                values.append(value)
                                batch.times_ms.append(time_ns() // 1_000_000)
                                if batch.keys is not None:
                                    batch.keys.append(key)
                            except BaseException:  # an interrupt of the user's thread
                                batch.trim()
                                raise
                            return future
            except CalledInside:  # a signal handler or a finalizer has interrupted a call of this producer
                return self._send_or_wait(topic, value, key, headers, partition, timestamp_ms)
        return self._send_or_wait(topic, value, key, headers, partition, timestamp_ms)

    def _send_or_wait(self, *call: Any) -> RecordFuture:
        sent = self._send(*call, may_wait=True)
        assert sent is not None, "a send that may wait has a future"
        return sent

    def _send_now(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture | None:
        """Send like `send`; return None, with nothing done, if it would have to wait for memory or metadata."""
        info = self._cluster.metadata.topic(check_topic(topic))
        if info is None or (isinstance(partition, int) and partition >= len(info.partitions)):
            return None
        if not self._engine.has_room():
            return None  # before serializers and interceptors are asked: they would be asked again
        return self._send(topic, value, key, headers, partition, timestamp_ms, may_wait=False)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        *,
        may_wait: bool,
    ) -> RecordFuture | None:
        deadline_ms = monotonic_ms() + self._config.max_block_ms if may_wait else None
        self._home.check()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self._interceptors:
            return self._put(record, deadline_ms)
        record = self._interceptors.on_send(record)
        try:
            future = self._put(record, deadline_ms)
        except Exception as error:
            self._interceptors.on_send_error(record, error)
            raise
        if future is not None:
            future.add_done_callback(self._interceptors.callback_for(record))
        return future

    def _put(self, record: ProducerRecord, deadline_ms: float | None) -> RecordFuture | None:
        """Check, serialize and hand over. `deadline_ms` None: does not wait, but returns None."""
        topic, value, key, headers, partition, timestamp_ms = record
        check_topic(topic)
        value = check_bytes("value", self._serialize_value(topic, headers, value))
        key = check_bytes("key", self._serialize_key(topic, headers, key))
        headers = check_headers(headers)
        partition = check_partition(partition)
        timestamp_ms = None if timestamp_ms is None else check_timestamp(timestamp_ms)
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + headers_bytes(headers or ())
        if size > self._config.max_request_size:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected a record of at most max.request.size={self._config.max_request_size} bytes, found {size}",
            )
        info = self._topic(topic, partition, monotonic_ms() if deadline_ms is None else deadline_ms)
        partition_count = len(info.partitions)
        if partition is None and self._partitioner is not None:
            available = self._cluster.metadata.available_partitions(info) if self._partitioner.wants_available else None
            partition = self._partitioner.partition(
                topic,
                key,
                value,
                partition_count,
                available,
                key_object=record.key,
                value_object=record.value,
            )
        record_ms = time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        taken = (value, key, headers, partition, record_ms, size)
        if self._lock.is_held_here():  # a signal handler or a finalizer has interrupted a call of this producer
            return self._engine.add_late(topic, taken, partition_count)
        try:
            with self._lock:
                return self._engine.add(topic, taken, partition_count, deadline_ms=deadline_ms)
        finally:
            self._engine.announce_soon()

    def send_batch(self, topic: str, table: pa.Table | pa.RecordBatch, partition: int | None = None) -> BatchFuture:
        """Send many records at once, the fast path; the future gives a list of `BatchMetadata`.

        `table` has the column `value` and may have `key`, `headers` (list<struct<key string, value binary>>) and
        `timestamp`, of a type that has a unit: numbers are refused. Without `partition`, records with a key go where
        `send` would put them; those without go to one partition together, the next batch's to the next. A partition's
        records keep their order. A batch larger than max.request.size is sent in several requests. An empty one is done
        at once, with nothing in it. Serializers and interceptors are for single records: they are not asked.

        Waits up to max.block.ms for metadata and for buffer.memory. Raises `BusError`: nothing was sent, unless
        REQUEST_TIMED_OUT says how many records were.
        """
        deadline_ms = monotonic_ms() + self._config.max_block_ms
        self._home.check()
        check_topic(topic)
        batch = one_batch(table)
        partition = check_partition(partition)
        if batch.num_rows == 0:
            return BatchFuture(0)
        info = self._topic(topic, partition, deadline_ms)
        parts = [(partition, batch)] if partition is not None else self._engine.split(topic, batch, info)
        timestamp_ms = None if "timestamp" in batch.schema.names else time_ns() // 1_000_000
        runs = [(number, run) for number, part in parts for run in self._runs(part)]
        future = BatchFuture(len(runs), self._engine.callback_threads)
        self._hand_over(topic, runs, future, timestamp_ms, deadline_ms)
        return future

    # ------------------------------------------------------------ transactions

    def init_transactions(self) -> None:
        """Once, before the first transaction: ends what an earlier instance with this transactional id left open, and
        fences it. Waits up to max.block.ms; may be repeated after REQUEST_TIMED_OUT. Raises `BusError`."""
        calls = self._needed_transactions("init_transactions")
        with self._lock:
            self._manager.begin_initializing()
        calls.initialize()

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on belong to it until it is committed or aborted. Raises
        `BusError`."""
        self._needed_transactions("begin_transaction")
        with self._lock:
            self._manager.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group_metadata: GroupMetadata
    ) -> None:
        """Commit offsets of the group with the transaction, and not before: those of the next records to read.
        `group_metadata`: the consumer's, by which a consumer that is no member any more is refused (KIP-447). The
        consumer itself must not commit these. Waits up to max.block.ms. After an error the transaction can only be
        aborted. Raises `BusError`."""
        calls = self._needed_transactions("send_offsets_to_transaction")
        checked = offsets_by_partition("offsets", offsets, check_committed)
        if not isinstance(group_metadata, GroupMetadata):
            raise wrong_type("group_metadata as a GroupMetadata", group_metadata, "consumer.group_metadata() gives it")
        with self._lock:
            self._manager.check_may_send("send_offsets_to_transaction")
        if checked:
            calls.commit_offsets(checked, group_metadata)

    def commit_transaction(self) -> dict[TopicPartition, CommittedRows]:
        """Flush, and make all of the transaction visible, in each partition at once; or nothing of it. Returns where
        the rows are in each partition.

        After REQUEST_TIMED_OUT (max.block.ms), or an interrupt, the outcome is open: only this call may be made, again.
        After an error that leaves the producer usable, nothing of the transaction is, or ever will be, in a log: call
        `abort_transaction`. After one that does not (PRODUCER_FENCED above all: another instance has the id) the
        producer can only be closed, and cannot know: the transaction is there as a whole or not at all. Raises
        `BusError`."""
        calls = self._needed_transactions("commit_transaction")
        unsettled = self._engine.start_commit()
        try:
            wait_all(unsettled, None)
        finally:
            self._engine.end_flush()
        end = self._engine.end_transaction()
        return {} if end is None else calls.end(end)

    def abort_transaction(self) -> None:
        """Nothing of the transaction will ever be in a log. Futures that are not done fail with TRANSACTION_ABORTABLE.
        Waits up to max.block.ms; may be repeated after REQUEST_TIMED_OUT. Refused with INVALID_TXN_STATE once a commit
        was asked for, unless that was refused. Raises `BusError`."""
        self._abort(self._needed_transactions("abort_transaction"), None)

    def _abort(self, calls: TransactionCalls, timeout: float | None) -> None:
        self._engine.start_abort()
        end = self._engine.end_transaction()
        if end is not None:
            calls.end(end, timeout)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Producer]:
        """A transaction that is committed at the end of the block, and aborted if the block or a record fails. An error
        of the commit is raised; if it is REQUEST_TIMED_OUT, the outcome is open (see `commit_transaction`)."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._abort_after_failure()
            raise
        self._check_block_is_open()
        try:
            self.commit_transaction()
        except BusError:
            self._abort_after_failure()
            raise

    def _check_block_is_open(self) -> None:
        with self._lock:
            self._manager.check_block_is_open()

    def _abort_after_failure(self, timeout: float | None = None) -> None:
        """If it can be aborted: what failed is told, and not this."""
        with self._lock:
            may_abort = self._manager.may_abort
        if may_abort and self._transactions is not None:
            try:
                self._abort(self._transactions, timeout)
            except BusError as error:
                # the call that fenced this producer has aborted the transaction
                if error.code is not ErrorCode.PRODUCER_FENCED:
                    logger.warning("a transaction could not be aborted; its time-out will do it: %s", error)

    @property
    def _manager(self) -> TransactionManager:
        manager = self._engine.transactions
        assert manager is not None, "of a producer that has a transactional id only"
        return manager

    def _needed_transactions(self, call: str) -> TransactionCalls:
        self._home.check()
        if self._transactions is None:
            raise BusError(
                ErrorCode.INVALID_REQUEST, f"{call}(): expected a producer with a transactional_id, found none"
            )
        check_outside()
        if self._engine.is_in_callback:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected {call}() outside of callbacks: answers wait behind it")
        if self._is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")
        return self._transactions

    # ------------------------------------------------------------ the end

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits for company, and wait until everything sent before this call has its outcome and its
        callbacks have run; errors stay in the futures. So a thread that holds a lock which a callback wants must not
        call it.

        Raises `TimeoutError` after `timeout` seconds, and `BusError` INVALID_REQUEST in a callback, where answers wait
        behind it.
        """
        self._home.check()
        timeout = check_timeout(timeout)
        check_outside()
        if self._engine.is_in_callback:
            raise BusError(ErrorCode.INVALID_REQUEST, "expected flush() outside of callbacks: it would wait for itself")
        ends_at = None if timeout is None else time.monotonic() + timeout
        unsettled = self._engine.start_flush()
        try:
            wait_all(unsettled, timeout)
            self._engine.wait_until_announced(None if ends_at is None else max(0.0, ends_at - time.monotonic()))
        finally:
            self._engine.end_flush()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end; a transaction that is open is aborted. What is not acknowledged within `timeout` seconds
        fails with REQUEST_TIMED_OUT, which says so; 0, and a call in a callback, waits for nothing. Then interceptors,
        serializers and the partitioner are closed, each that has a `close()`, once. Safe to repeat."""
        timeout = check_timeout(timeout)
        if self._is_closed:
            return
        check_outside()
        self._is_closed = True
        forget_producer(self)
        if not self._home.is_here():
            return  # everything belongs to the process that made it
        is_in_callback = self._engine.is_in_callback
        try:
            if self._transactions is not None and not is_in_callback and timeout != 0:
                self._abort_after_failure(timeout)
            flush_and_end(self._threads, 0.0 if is_in_callback else timeout)
        finally:
            self._close_what_was_given()

    def _close_what_was_given(self) -> None:
        config = self._config
        given = {f"interceptor {type(one).__name__}": one for one in config.interceptors}
        given |= {"key_serializer": config.key_serializer, "value_serializer": config.value_serializer}
        close_all(given | {"partitioner": config.partitioner})

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def partitions_for(self, topic: str) -> list[int]:
        """The partition numbers of `topic`, also between transactions. Waits up to max.block.ms for a broker and for
        the topic. Raises `BusError`."""
        self._home.check()
        info = self._cluster.metadata.topic(check_topic(topic))
        if info is None:
            self._engine.check_open()
            info = self._wait_topic(topic, monotonic_ms() + self._config.max_block_ms)
        return list(range(len(info.partitions)))

    def last_sequence(self, topic: str, partition: int) -> int | None:
        """The sequence of the last record that this named producer, any instance of it, has in the partition; None if
        there is none. The first record has 0, and each one more than the record before it (after 2,147,483,647 comes
        0). Nothing of an older instance can follow once this has answered.

        Everything that this instance sends is in the log or has failed when it is counted: flush first. Raises
        `BusError`: INVALID_REQUEST for a producer without a name, PRODUCER_FENCED if a younger instance has begun.
        """
        self._home.check()
        deadline_ms = monotonic_ms() + self._config.max_block_ms
        if self._config.name is None:
            raise BusError(ErrorCode.INVALID_REQUEST, 'expected a producer with a name (name="..."), found none')
        check_topic(topic)
        partition = check_integer("partition", partition, 0)
        info = self._topic(topic, partition, deadline_ms)
        return self._threads.last_sequence(info, partition, deadline_ms)

    def metrics(self) -> Mapping[str, float]:
        """Kafka's producer metrics by their names (`record-send-rate`, `batch-size-avg`, ...), now. Rates are per
        second over the last 30 to 60 seconds; times are milliseconds unless the name says otherwise."""
        return self._engine.metrics.snapshot(monotonic_ms())

    def topic_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Kafka's producer-topic-metrics: topic -> name -> value."""
        return self._engine.metrics.topic_snapshot(monotonic_ms())

    def disown(self) -> None:
        """Mark the copy in the child of a fork as unusable, whatever state the parent's threads left it in."""
        self._is_plain = False

    def _topic(self, topic: str, partition: int | None, deadline_ms: float) -> TopicInfo:
        """From the cache, however old: the sender keeps it fresh. `partition`, if given, exists."""
        info = self._cluster.metadata.topic(topic)
        if info is not None and (partition is None or 0 <= partition < len(info.partitions)):
            return info
        self._engine.check_usable()
        info = self._wait_topic(topic, deadline_ms)
        return info if partition is None else self._cluster.with_partition(info, partition, deadline_ms=deadline_ms)

    def _wait_topic(self, topic: str, deadline_ms: float) -> TopicInfo:
        """Wait for the topic, like Kafka's producer, also for a broker or a topic that does not exist yet."""
        try:
            return self._cluster.wait_topic(topic, deadline_ms=deadline_ms, may_create=True)
        except BusError as error:
            is_final = not error.retriable or isinstance(error, UnusableConnection)
            if is_final or not self._cluster.is_patient:
                raise
            raise BusError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {topic!r} not present in metadata after {self._config.max_block_ms} ms (max.block.ms): "
                f"{error.message}",
            ) from error

    def _runs(self, part: pa.RecordBatch) -> list[tuple[Any, int]]:
        """The part as payloads of at most max.request.size, each with its record count."""
        limit = self._config.max_request_size
        payload = None
        if part.nbytes <= limit * 4:  # far larger ones are not worth the try; compression may make it fit
            payload = self._threads.pack(part)
            if len(payload[0]) <= limit:
                return [(payload, part.num_rows)]
        size = len(payload[0]) if payload is not None else part.nbytes
        if part.num_rows == 1:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected a record of at most max.request.size={limit} bytes, found {size}",
            )
        pieces = min(part.num_rows, max(2, -(-size // max(1, limit - _ENVELOPE_BYTES))))
        rows = -(-part.num_rows // pieces)
        return [run for start in range(0, part.num_rows, rows) for run in self._runs(part.slice(start, rows))]

    def _hand_over(
        self,
        topic: str,
        runs: list[tuple[int, tuple[Any, int]]],
        future: BatchFuture,
        timestamp_ms: int | None,
        deadline_ms: float,
    ) -> None:
        """Hand the runs over in groups that fit buffer.memory; normally one."""
        group: list[tuple[int, RunChunk]] = []
        group_bytes = handed_over = 0
        room = self._config.buffer_memory // 2
        for slot, (partition, (payload, record_count)) in enumerate(runs):
            size = len(payload[0])
            if group and group_bytes + size > room:
                self._hand_over_group(topic, group, group_bytes, deadline_ms, handed_over)
                handed_over += sum(chunk.record_count for _, chunk in group)
                group, group_bytes = [], 0
            chunk = RunChunk(
                future,
                slot,
                payload,
                partition=TopicPartition(topic, partition),
                record_count=record_count,
                size_bytes=size,
                timestamp_ms=timestamp_ms,
                deadline_ms=monotonic_ms() + self._config.delivery_timeout_ms,
            )
            group.append((partition, chunk))
            group_bytes += size
        if group:
            self._hand_over_group(topic, group, group_bytes, deadline_ms, handed_over)

    def _hand_over_group(
        self, topic: str, group: list[tuple[int, RunChunk]], size_bytes: int, deadline_ms: float, handed_over: int
    ) -> None:
        try:
            with self._lock:
                self._engine.add_chunks(topic, group, size_bytes=size_bytes, deadline_ms=deadline_ms)
        except BusError as error:
            if handed_over:
                raise BusError(error.code, f"{error.message}; {handed_over} records of the batch were sent") from None
            raise
        finally:
            self._engine.announce_soon()
