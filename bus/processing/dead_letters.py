"""The dead letter topic: where records go that could not be processed, as they were, with the reason beside them.

Guards three promises. A dead letter has the very bytes of its record: where keys or values were deserialized, it is
read from the log again. It is in the log, acknowledged, before the record counts as done. And no record blocks what is
behind it because its letter is too large: then the letter goes without the headers that were added, the text of the
error first, and at last as the settings say. The topic is created when the first dead letter comes, with as many
partitions as the record's, and room for the headers; a dead letter goes to the partition of the same number, or where
its key belongs if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bus.client.admin.admin import Admin
from bus.client.config.sources import only_settings_of_connections
from bus.client.connection.retrying import Backoff, monotonic_ms, retry
from bus.client.consumer.consumer import Consumer
from bus.client.interceptors import ProducerRecord
from bus.client.producer.producer import Producer
from bus.client.values import ConsumerRecord, Headers, NewTopic
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import Flag, Turn, logger_of
from bus.processing.settings import ProcessingSettings
from bus.processing.transactional_output import Outcome
from bus.processing.work import Work

logger = logger_of(__name__)

_ERROR_TEXT_MAX = 1_000
_ATTEMPT_TIMEOUT_MS = 30_000  # for each step of an attempt to send a letter
_SEND_TIMEOUT_MS = 120_000  # a producer's delivery.timeout.ms: a broker that restarts stops no run
_ADDED_BYTES_MAX = 16_384  # the added headers, with names and ids of the largest size
_SIZE_MAX = 1 << 30  # the broker refuses records that are too large
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_ERROR_HEADER = "bus.dlq.exception"
ResultT = TypeVar("ResultT")


class DeadLetters:
    """Called by workers, from any thread. No connection is made before the first dead letter."""

    def __init__(
        self,
        addresses: Sequence[str],
        settings: ProcessingSettings,
        security: Mapping[str, Any],
        *,
        group_id: str,
        is_deserialized: bool,
    ) -> None:
        """`security`: the settings by which its clients reach the broker."""
        self._addresses = list(addresses)
        self._settings = settings
        self._security = dict(security)
        self._group_id = group_id
        self._is_deserialized = is_deserialized
        self._creating = Turn()  # held while a broker is asked
        self._lock = Turn()  # protects the producer; never held that long
        self._closed = Flag()
        self._producer: Producer | None = None
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._partition_counts: dict[str, int] = {}  # keyed by dead letter topic

    def send(self, work: Work, error: BaseException) -> None:
        """Returns when the broker has it. Raises what keeps it from being sent; what may pass, a broker that restarts
        above all, only when it has not passed for two minutes."""
        topic = self._settings.dead_letter_topic_of(work.record.topic)
        for one in _one_by_one(work):
            self._repeat(one, topic, lambda one=one: self._send_once(topic, one, error))  # type: ignore[misc]  # bound now

    def compose(self, work: Work, error: BaseException) -> Outcome:
        """Prepare the letter like `send`, but do not send it: it is to be committed with the offset of its record."""
        topic = self._settings.dead_letter_topic_of(work.record.topic)
        forms = self._repeat(work, topic, lambda: [list(self._forms(topic, one, error)) for one in _one_by_one(work)])
        records: list[Sequence[ProducerRecord]] = [list(form) for form in zip(*forms, strict=True)]
        if self._settings.dead_letter_too_large == "skip":
            records.append(())
        return Outcome(work, tuple(records), is_letter=True)

    def _repeat(self, work: Work, topic: str, attempt_once: Callable[[], ResultT]) -> ResultT:
        deadline_ms = monotonic_ms() + _SEND_TIMEOUT_MS

        def pause(attempt: int, failed: BusError) -> bool:
            delay_ms = self._backoff.ms(attempt)
            if monotonic_ms() + delay_ms >= deadline_ms:
                return False
            logger.warning("%s offset %d: its dead letter is sent again: %s", *_place(work), failed)
            self._partition_counts.pop(topic, None)  # it may have been deleted
            return not self._closed.wait(delay_ms / 1000)

        return retry(attempt_once, may_retry=lambda attempt, failed: failed.retriable, pause=pause)

    def _forms(self, topic: str, work: Work, error: BaseException) -> Iterator[ProducerRecord]:
        """Yield the forms of the letter, each smaller than the one before."""
        count = self._partition_count(topic, work.record.topic)
        is_raw = work.failure is not None or not self._is_deserialized
        raw = work.record if is_raw else self._read_again(work.partition, work.record.offset)
        partition = work.partition.partition if work.partition.partition < count else None
        for letter in self._letters(raw, dead_letter_headers(work, error, self._group_id)):
            yield ProducerRecord(topic, letter.value, letter.key, letter.headers, partition)

    def _send_once(self, topic: str, work: Work, error: BaseException) -> None:
        refused: BusError | None = None
        for letter in self._forms(topic, work, error):
            try:
                self._sender().send(*letter).result()
            except BusError as failed:
                if failed.code not in TOO_LARGE:
                    raise
                refused = failed
                logger.warning("%s offset %d: its dead letter is made smaller: %s", *_place(work), failed)
            else:
                return
        assert refused is not None, "one form of the letter was tried"
        if self._settings.dead_letter_too_large != "skip":
            raise refused
        logger.error("%s offset %d: skipped, and there is no dead letter: %s", *_place(work), refused)

    def _letters(self, raw: ConsumerRecord, added: Headers) -> Iterator[ConsumerRecord]:
        yield raw._replace(headers=[*raw.headers, *added])
        yield raw._replace(headers=[*raw.headers, *(header for header in added if header[0] != _ERROR_HEADER)])
        yield raw
        if self._settings.dead_letter_too_large == "without_value":
            size = sum(len(data) for data in (raw.key, raw.value) if data is not None)
            left_out = ("bus.dlq.left_out_bytes", str(size).encode())
            yield raw._replace(key=None, value=None, headers=[*added, left_out])

    def close(self) -> None:
        """Ends the sending that is under way."""
        self._closed.set()
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _partition_count(self, topic: str, source: str) -> int:
        """Return the number of partitions of the dead letter topic, which is created if it does not exist."""
        with self._creating:
            count = self._partition_counts.get(topic)
            if count is None:
                count = self._partition_counts[topic] = self._ensure_topic(topic, source)
            return count

    def _sender(self) -> Producer:
        with self._lock:
            if self._closed.is_set():
                raise BusError(ErrorCode.INVALID_REQUEST, "the run is over, no dead letter is sent any more")
            if self._producer is None:
                with only_settings_of_connections():
                    self._producer = Producer(
                        self._addresses,
                        client_id="bus-dead-letters",
                        max_request_size=_SIZE_MAX,
                        buffer_memory=_SIZE_MAX,
                        max_block_ms=_ATTEMPT_TIMEOUT_MS,
                        request_timeout_ms=_ATTEMPT_TIMEOUT_MS // 2,
                        delivery_timeout_ms=_ATTEMPT_TIMEOUT_MS,
                        **self._security,
                    )
            return self._producer

    def _ensure_topic(self, topic: str, source: str) -> int:
        with Admin(self._addresses, default_api_timeout_ms=_ATTEMPT_TIMEOUT_MS, **self._security) as admin:
            try:
                return _partition_count(admin, topic)
            except BusError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            _create_topic(admin, topic, source)
            return _partition_count(admin, topic)

    def _read_again(self, partition: TopicPartition, offset: int) -> ConsumerRecord:
        configs = {"client_id": "bus-dead-letters", "auto_offset_reset": "none", **self._security}
        with only_settings_of_connections():
            reader = Consumer(self._addresses, **configs)
        with reader:
            reader.assign([partition])
            reader.seek(partition, offset)
            records = reader.poll(_ATTEMPT_TIMEOUT_MS, max_records=1)
        if not records:
            raise BusError(ErrorCode.REQUEST_TIMED_OUT, f"{partition}: offset {offset} could not be read once more")
        if records[0].offset != offset:
            raise BusError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: expected offset {offset} once more, found offset {records[0].offset}",
            )
        return records[0]


def _partition_count(admin: Admin, topic: str) -> int:
    return len(admin.describe_topics([topic])[topic].partitions)


def _create_topic(admin: Admin, topic: str, source: str) -> None:
    """Create the topic like `source`, with room for the added headers. Another client may be faster."""
    (limit,) = admin.describe_configs(source, keys=["max.message.bytes"])
    room = min(int(limit.value) + _ADDED_BYTES_MAX, 2**31 - 1)
    new = NewTopic(topic, partitions=_partition_count(admin, source), configs={"max.message.bytes": room})
    try:
        admin.create_topics([new])
    except BusError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _one_by_one(work: Work) -> Iterator[Work]:
    """Each record of a batch has a letter of its own."""
    return (replace(work, record=record, batch=None) for record in work.records)


def _place(work: Work) -> tuple[TopicPartition, int]:
    return work.partition, work.record.offset


def dead_letter_headers(work: Work, error: BaseException, group_id: str) -> Headers:
    """Why a record is a dead letter, and where it came from; numbers are decimal."""
    record = work.record
    return [
        ("bus.dlq.reason", work.failed_at.value.encode()),
        (_ERROR_HEADER, f"{type(error).__qualname__}: {error}"[:_ERROR_TEXT_MAX].encode(errors="replace")),
        ("bus.dlq.attempts", str(work.attempt).encode()),
        ("bus.dlq.group", group_id.encode()),
        ("bus.dlq.topic", record.topic.encode()),
        ("bus.dlq.partition", str(record.partition).encode()),
        ("bus.dlq.offset", str(record.offset).encode()),
        ("bus.dlq.timestamp", str(record.timestamp_ms).encode()),
    ]
