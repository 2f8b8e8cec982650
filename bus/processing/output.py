"""What handlers send in a run with transactions, kept until the transaction that commits their records.

Guards two promises. What one call of a handler sends is all there or not at all: a call that raises, and is repeated,
leaves nothing. And what a call sends is checked and serialized inside of `send`, where the handler can see the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time_ns
from typing import Any

from bus.client.arguments import check_topic
from bus.client.interceptors import ProducerRecord
from bus.client.producer.batch import Headers
from bus.client.producer.checks import check_bytes, check_headers, check_partition, check_timestamp
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.processing.work import Work

Serialize = Callable[[str, Headers | None, Any], Any]  # topic, headers, value

_RECORD_BYTES = 64  # that a record takes besides its key, value and headers, about


class Output:
    """Takes the records that one call of a handler sends. They are in their topics, together with everything else that
    the call sent and with the offset of its record, or nowhere. For any thread, until the handler has returned."""

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
        """As `Producer.send`, but that there is no future: the record is sent when the offset of the handler's record
        is committed, in the same transaction. Does not wait. Raises `BusError`, TypeError and ValueError for what is no
        record."""
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
        """The handler has returned: all that it sent."""
        self._is_over = True
        return self._records


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be committed with the offset of a record. `forms`: the first one is sent; if it is too large for its
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
    """What one transaction commits: the outcomes of all records below `offsets` that are not committed yet, those of a
    partition in the order of its records."""

    outcomes: Sequence[Outcome]
    offsets: Mapping[TopicPartition, int]


class WaitingOutcomes:
    """Of records that are done, and whose offsets are not committed."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[int, Outcome]] = {}

    def put(self, outcome: Outcome) -> None:
        """In the place of the one that its record had, if it had one."""
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
