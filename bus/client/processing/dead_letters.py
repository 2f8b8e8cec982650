"""The dead letter topic: where records go that could not be processed, as they were, with the reason beside them.

Guards two promises. A dead letter has the very bytes of its record: where keys or values were deserialized, it is read
from the log again. And it is in the log, acknowledged, before the record counts as done. The topic is created when the
first dead letter comes, with as many partitions as the record's; a dead letter goes to the partition of the same
number, or where its key belongs if there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bus.client.admin import Admin
from bus.client.consumer import Consumer
from bus.client.processing.error_decisions import FailedAt
from bus.client.processing.settings import ProcessingSettings
from bus.client.processing.work import Work
from bus.client.producer import Producer
from bus.client.values import ConsumerRecord, Headers, NewTopic
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

_ERROR_TEXT_MAX = 1_000
_READ_TIMEOUT_MS = 30_000


class DeadLetters:
    """Called by workers, from any thread. No connection is made before the first dead letter."""

    def __init__(
        self, addresses: Sequence[str], settings: ProcessingSettings, *, group_id: str, is_deserialized: bool
    ) -> None:
        self._addresses = list(addresses)
        self._settings = settings
        self._group_id = group_id
        self._is_deserialized = is_deserialized
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._partition_counts: dict[str, int] = {}  # of dead letter topics

    def send(self, work: Work, error: BaseException) -> None:
        """Returns when the broker has it. Raises what keeps it from being sent."""
        with self._lock:
            topic = self._settings.dead_letter_topic_of(work.record.topic)
            count = self._partition_counts.get(topic)
            if count is None:
                count = self._partition_counts[topic] = self._ensure_topic(topic, work.record.topic)
            if self._producer is None:
                self._producer = Producer(self._addresses, client_id="bus-dead-letters")
            producer = self._producer
            is_raw = work.failure is not None or not self._is_deserialized
            raw = work.record if is_raw else self._read_again(work.partition, work.record.offset)
        partition = work.partition.partition if work.partition.partition < count else None
        headers = [*raw.headers, *dead_letter_headers(work, error, self._group_id)]
        producer.send(topic, raw.value, raw.key, headers, partition=partition).result()

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _ensure_topic(self, topic: str, source: str) -> int:
        with Admin(self._addresses) as admin:
            count = len(admin.describe_topics([source])[source].partitions)
            try:
                admin.create_topics([NewTopic(topic, partitions=count)])
            except BusError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            return len(admin.describe_topics([topic])[topic].partitions)

    def _read_again(self, partition: TopicPartition, offset: int) -> ConsumerRecord:
        with Consumer(self._addresses, client_id="bus-dead-letters", auto_offset_reset="none") as reader:
            reader.assign([partition])
            reader.seek(partition, offset)
            records = reader.poll(_READ_TIMEOUT_MS, max_records=1)
        if not records or records[0].offset != offset:
            found = f"offset {records[0].offset}" if records else "nothing"
            raise BusError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition}: expected offset {offset} once more, found {found}"
            )
        return records[0]


def dead_letter_headers(work: Work, error: BaseException, group_id: str) -> Headers:
    """Why a record is a dead letter, and where it came from; numbers are decimal."""
    failed_at = FailedAt.HANDLER if work.failure is None else FailedAt.DESERIALIZER
    record = work.record
    return [
        ("bus.dlq.reason", failed_at.value.encode()),
        ("bus.dlq.exception", f"{type(error).__qualname__}: {error}"[:_ERROR_TEXT_MAX].encode(errors="replace")),
        ("bus.dlq.attempts", str(work.attempt).encode()),
        ("bus.dlq.group", group_id.encode()),
        ("bus.dlq.topic", record.topic.encode()),
        ("bus.dlq.partition", str(record.partition).encode()),
        ("bus.dlq.offset", str(record.offset).encode()),
        ("bus.dlq.timestamp", str(record.timestamp_ms).encode()),
    ]
