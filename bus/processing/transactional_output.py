"""Transactions of a run: what handlers sent, dead letters, and the offsets of their records, together or not at all.

Theory of operation. Handlers send nothing: what they hand over waits in memory (`output.py`, `record_flow.py`) until
the offset of its record may be committed. Then a transaction is begun, filled and committed in one go, on the thread
that polls. So it is open for as long as that takes, however long handlers work or wait for their next attempt; and one
that is aborted costs no handler a second call: as long as the partitions are this member's, what waits goes into the
next one. Partitions that are given up take with them what waits of theirs; their next owner begins at the offset that
is committed.

Guards three promises. Offsets are committed in the name of a member of the present generation, with partitions that it
owns, or not at all (KIP-447). The end of a transaction is asked for again until its outcome is known. And one record
that its topic refuses is found out by transactions of half the size, so all before it is committed on the way: to fill
the same transaction again for each such record would make a crowd of them last longer than its time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time_ns
from typing import Any, Protocol, TypeVar

from bus.client.arguments import check_topic
from bus.client.config.clients import SecurityConfig
from bus.client.config.security import security_settings
from bus.client.config.sources import only_settings_of_connections
from bus.client.interceptors import ProducerRecord, close_all
from bus.client.producer.batch import Headers
from bus.client.producer.checks import check_bytes, check_headers, check_partition, check_timestamp
from bus.client.producer.producer import Producer
from bus.client.values import GroupMetadata
from bus.errors import BusError, ErrorCode, reduce_error
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.processing.settings import ProcessingSettings
from bus.processing.work import Work
from bus.serializers import serializer_of

ResultT = TypeVar("ResultT")


Serialize = Callable[[str, Headers | None, Any], Any]  # topic, headers, value

_RECORD_BYTES = 64  # about what a record takes besides its key, value and headers


class Output:
    """The records that one call of a handler sends. Either all of them are committed, together with the offset of the
    handler's record, or none: a call that raises, and is repeated, leaves nothing. For any thread, until the handler
    has returned."""

    __slots__ = ("_is_over", "_records", "_serialize_key", "_serialize_value")

    def __init__(self, serialize_key: Serialize, serialize_value: Serialize) -> None:
        self._serialize_key = serialize_key
        self._serialize_value = serialize_value
        self._records: list[ProducerRecord] = []
        self._is_over = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send a record like `Producer.send`, but without a future: the record is sent when the offset of the handler's
        record is committed, in the same transaction. It is checked and serialized here, where the handler can see the
        error. Does not wait. Raises `BusError`, TypeError and ValueError for invalid records."""
        if self._is_over:
            raise BusError(
                ErrorCode.INVALID_REQUEST, "expected send() before the handler returned, found its record handled"
            )
        check_topic(topic)
        sent = ProducerRecord(
            topic,
            check_bytes("value", self._serialize_value(topic, headers, value)),
            check_bytes("key", self._serialize_key(topic, headers, key)),
            check_headers(headers),
            check_partition(partition),
            time_ns() // 1_000_000 if timestamp_ms is None else check_timestamp(timestamp_ms),
        )
        self._records.append(sent)

    def close(self) -> list[ProducerRecord]:
        """End the output after the handler has returned; return the records that it sent."""
        self._is_over = True
        return self._records


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records to commit with the offset of a record. `forms`: the first one is sent; if it is too large for its
    topic, the next one, which is smaller, takes its place."""

    work: Work
    forms: tuple[Sequence[ProducerRecord], ...]
    is_letter: bool = False

    @property
    def records(self) -> Sequence[ProducerRecord]:
        return self.forms[0]

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.records))

    def smaller(self) -> Outcome | None:
        return replace(self, forms=self.forms[1:]) if len(self.forms) > 1 else None


def _size_bytes(record: ProducerRecord) -> int:
    headers = sum(len(name) + len(data or b"") for name, data in record.headers or ())
    return len(record.value or b"") + len(record.key or b"") + headers + _RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    """The content of one transaction: the outcomes of all records below `offsets` that are not committed yet, those of
    a partition in the order of its records."""

    outcomes: Sequence[Outcome]
    offsets: Mapping[TopicPartition, int]


class WaitingOutcomes:
    """The outcomes of finished records whose offsets are not committed."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[int, Outcome]] = {}

    def put(self, outcome: Outcome) -> None:
        """Store the outcome; it replaces an earlier one of the same record."""
        self._by_partition.setdefault(outcome.work.partition, {})[outcome.work.record.offset] = outcome

    def drop(self, outcome: Outcome) -> None:
        del self._by_partition[outcome.work.partition][outcome.work.record.offset]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._by_partition.pop(partition, None)

    def note_committed(self, partition: TopicPartition, offset: int) -> None:
        waiting = self._by_partition.get(partition)
        if waiting is not None:
            self._by_partition[partition] = {at: outcome for at, outcome in waiting.items() if at >= offset}

    def cut(self, offsets: Mapping[TopicPartition, int], bytes_max: int) -> Cut:
        """Up to `offsets`, or less far if that is more than `bytes_max`; one record at least. `offsets` are such that
        all records below are done."""
        outcomes: list[Outcome] = []
        reached: dict[TopicPartition, int] = {}
        size_bytes = 0
        for partition, end in offsets.items():
            waiting = self._by_partition.get(partition, {})
            for offset in sorted(at for at in waiting if at < end):
                size_bytes += waiting[offset].size_bytes
                if size_bytes > bytes_max and outcomes:
                    reached[partition] = offset
                    return Cut(outcomes, reached)
                outcomes.append(waiting[offset])
            reached[partition] = end
        return Cut(outcomes, reached)


logger = logger_of(__name__)

_BYTES_MAX = 16 << 20  # for one transaction, unless a single record is larger
_SIZE_MAX = 1 << 30  # the broker refuses records that are too large
_LONE_ABORTS_MAX = 3  # aborts of a transaction with the output of one record before that record counts as the cause

_E = ErrorCode
# Errors of a record that a topic refuses: they would occur in the next transaction again.
_OF_A_RECORD = frozenset(
    {
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_RECORD,
        _E.INVALID_TIMESTAMP,
        _E.INVALID_TOPIC_EXCEPTION,
        _E.POLICY_VIOLATION,
    }
)
# The producer can continue when it has aborted, and the group when it has rebalanced.
_PASSING = frozenset(
    {
        _E.TRANSACTION_ABORTABLE,
        _E.INVALID_PRODUCER_EPOCH,  # the transaction's time-out; if another instance has the id, the abort says so
        _E.INVALID_TXN_STATE,
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _E.ILLEGAL_GENERATION,
        _E.UNKNOWN_MEMBER_ID,
        _E.REBALANCE_IN_PROGRESS,
        _E.FENCED_INSTANCE_ID,
    }
)


class TransactionPutOff(Exception):
    """Nothing was committed; the same may be committed later."""


class OutputInDoubt(Exception):
    """Nothing was committed: the output of one of several records is refused. To be tried again at once, with no more
    than `bytes_max`, which is smaller now."""


class OutputRefused(Exception):
    """Nothing was committed, and nothing ever will be with this output as it is. `__cause__` says why."""

    def __init__(self, outcome: Outcome, error: Exception) -> None:
        super().__init__(str(error))
        self.outcome = outcome
        self.error = error

    __reduce__ = reduce_error


class CommittingMember(Protocol):
    """The part of `GroupClient` that transactions need."""

    def transaction_stamp(self, partitions: Sequence[TopicPartition]) -> GroupMetadata:
        """Return the member in whose name offsets of these partitions are committed. Raises `BusError` if this member
        may not commit them."""
        ...

    def note_stamp_refused(self, error: BusError, stamp: GroupMetadata) -> None: ...


class SendingFuture(Protocol):
    def result(self, timeout: float | None = None) -> Any: ...


class TransactionalProducer(Protocol):
    """The part of `bus.Producer` that transactions need."""

    def init_transactions(self) -> None: ...

    def begin_transaction(self) -> None: ...

    def send(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> SendingFuture: ...

    def flush(self) -> None: ...

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group_metadata: GroupMetadata
    ) -> None: ...

    def commit_transaction(self) -> Any: ...

    def abort_transaction(self) -> None: ...

    def partitions_for(self, topic: str) -> list[int]: ...

    def close(self) -> None: ...


def open_transactions(
    addresses: Sequence[str], settings: ProcessingSettings, security: SecurityConfig, member: CommittingMember
) -> OutputTransactions:
    """`security`: how the broker is reached, unless the producer's configs say it. Raises `BusError` INVALID_CONFIG.
    Makes no connection."""
    configs = {**settings.producer_configs, **security_settings(security, settings.producer_configs)}
    serializers = {name: configs.pop(name, None) for name in ("key_serializer", "value_serializer")}
    if not configs.keys() & {"max_request_size", "buffer_memory"}:
        configs |= {"max_request_size": _SIZE_MAX, "buffer_memory": _SIZE_MAX}
    with only_settings_of_connections():
        producer = Producer(list(addresses), transactional_id=settings.transactional_id, **configs)
    return OutputTransactions(producer, member, settings, **serializers)


class OutputTransactions:
    """`new_output` and `check` are for workers; the rest is for the thread that polls."""

    def __init__(
        self,
        producer: TransactionalProducer,
        member: CommittingMember,
        settings: ProcessingSettings,
        key_serializer: Any = None,
        value_serializer: Any = None,
    ) -> None:
        self.bytes_max = _BYTES_MAX
        self._producer = producer
        self._member = member
        self._id = settings.transactional_id
        self._serializers = {"key_serializer": key_serializer, "value_serializer": value_serializer}
        self._serialize_key = serializer_of(key_serializer, "key")
        self._serialize_value = serializer_of(value_serializer, "value")
        self._partitions: dict[str, list[int]] = {}  # keyed by topic
        self._lone_aborts = 0

    # ------------------------------------------------------------ for workers

    def new_output(self) -> Output:
        return Output(self._serialize_key, self._serialize_value)

    def has_checked(self, records: Sequence[ProducerRecord]) -> bool:
        """True if `check` would not have to wait."""
        return all(self._has_place(record) for record in records)

    def check(self, records: Sequence[ProducerRecord]) -> None:
        """That their topics are there. Waits for a broker and for topics, as `Producer.send` does. Raises `BusError`:
        then it is the handler that failed."""
        for record in records:
            if not self._has_place(record):
                found = self._partitions[record.topic] = self._producer.partitions_for(record.topic)
                if record.partition is not None and record.partition not in found:
                    raise BusError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"{record.topic}: expected a partition below {len(found)}, found {record.partition}",
                    )

    def _has_place(self, record: ProducerRecord) -> bool:
        found = self._partitions.get(record.topic)
        return found is not None and (record.partition is None or record.partition in found)

    # ------------------------------------------------------------ for the thread that polls

    def initialize(self, is_given_up: Callable[[], bool]) -> None:
        """Ends what an earlier instance with this id left open, so that no position has to wait for its time-out.
        Raises `BusError`."""
        self._until_known(self._producer.init_transactions, is_given_up)

    def commit(
        self, outcomes: Sequence[Outcome], offsets: Mapping[TopicPartition, int], is_given_up: Callable[[], bool]
    ) -> None:
        """Commit all outcomes in one transaction. `is_given_up`: called while the outcome is open; True ends the call
        without knowing it. Raises `TransactionPutOff`, `OutputInDoubt`, `OutputRefused`, and `BusError` if the run
        cannot continue: above all PRODUCER_FENCED, when another instance has the id."""
        self._try_to_commit(outcomes, offsets, is_given_up)
        self._lone_aborts = 0
        self.bytes_max = min(2 * self.bytes_max, _BYTES_MAX)

    def _try_to_commit(
        self, outcomes: Sequence[Outcome], offsets: Mapping[TopicPartition, int], is_given_up: Callable[[], bool]
    ) -> None:
        try:
            stamp = self._member.transaction_stamp(list(offsets))
        except BusError as error:
            raise TransactionPutOff(str(error)) from error
        self._producer.begin_transaction()
        try:
            self._send(outcomes)
            self._send_offsets(offsets, stamp)
            self._until_known(self._producer.commit_transaction, is_given_up)
        except BaseException as failed:
            self._abort(failed, is_given_up)
            if not isinstance(failed, BusError):
                raise
            if failed.code in _OF_A_RECORD and len(outcomes) > 1:
                self._halve(outcomes)
                raise OutputInDoubt(str(failed)) from failed
            if not failed.retriable and failed.code not in _PASSING:
                raise
            if failed.code is ErrorCode.TRANSACTION_ABORTABLE and not _is_of_deleted_topic(failed):
                self._go_smaller(outcomes, failed)
            raise TransactionPutOff(str(failed)) from failed

    def _send(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            futures = []
            try:
                futures = [self._producer.send(*record) for record in outcome.records]
                if len(outcomes) == 1:
                    self._producer.flush()
                    for future in futures:
                        future.result()
            except Exception as error:  # also of a partitioner, which is a user's code
                gone = self._gone_partition(outcome, error)
                if gone is not None:
                    raise OutputRefused(outcome, gone) from error
                if isinstance(error, BusError) and (error.code not in _OF_A_RECORD or len(outcomes) > 1):
                    raise  # `send` also raises for a record that was sent before
                raise OutputRefused(outcome, error) from error

    def _gone_partition(self, outcome: Outcome, error: Exception) -> BusError | None:
        """The error of a record for a partition that its topic had when the handler sent it, and has no more. It does
        not pass: topics never lose partitions, so this is another topic of the same name."""
        if not isinstance(error, BusError) or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        for record in outcome.records:
            try:
                found = self._producer.partitions_for(record.topic)
            except BusError:
                return None  # there is no such topic for now
            if record.partition is not None and record.partition not in found:
                self._partitions.pop(record.topic, None)  # handlers look again
                return BusError(
                    error.code,
                    f"{record.topic}: expected a partition below {len(found)}, found {record.partition}: the topic was "
                    "deleted, and created again with fewer partitions, after the handler returned",
                )
        return None

    def _send_offsets(self, offsets: Mapping[TopicPartition, int], stamp: GroupMetadata) -> None:
        try:
            self._producer.send_offsets_to_transaction(offsets, stamp)
        except BusError as error:
            self._member.note_stamp_refused(error, stamp)
            raise

    def _abort(self, failed: BaseException, is_given_up: Callable[[], bool]) -> None:
        """Abort the transaction. Raises the `BusError` for which the producer cannot continue, if there is one."""
        try:
            self._until_known(self._producer.abort_transaction, is_given_up)
        except BusError as error:
            if not isinstance(failed, BusError) or error.code is ErrorCode.INVALID_TXN_STATE:
                return  # the outcome of a commit is open, and the run is over
            raise

    def _go_smaller(self, outcomes: Sequence[Outcome], error: BusError) -> None:
        """It may have been more than a partition stages of one transaction."""
        self._halve(outcomes)
        self._lone_aborts = self._lone_aborts + 1 if len(outcomes) == 1 else 0
        if self._lone_aborts == _LONE_ABORTS_MAX:
            self._lone_aborts = 0
            raise OutputRefused(outcomes[0], error) from error

    def _halve(self, outcomes: Sequence[Outcome]) -> None:
        self.bytes_max = max(1, min(self.bytes_max, sum(outcome.size_bytes for outcome in outcomes)) // 2)

    def _until_known(self, call: Callable[[], ResultT], is_given_up: Callable[[], bool]) -> ResultT:
        while True:
            try:
                return call()
            except BusError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT or is_given_up():
                    raise
                logger.warning("transactional id %r: asked again: %s", self._id, error)

    def close(self) -> None:
        self._producer.close()
        close_all(self._serializers)


def _is_of_deleted_topic(error: BusError) -> bool:
    """An offset or a record is for a partition that was deleted: smaller transactions would not help."""
    cause = error.__cause__
    return isinstance(cause, BusError) and cause.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
