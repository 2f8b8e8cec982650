"""Keys and values of records out of their bytes, by the functions that a user gave.

Guards two promises: None, a record without a value, is seen by no deserializer; and bytes that one of them rejects are
named by topic, partition and offset, with the raw record at hand, so that the reader can step over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bus.client.values import ConsumerRecord, Headers
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition


class RecordDeserializationError(BusError):
    """`record` is as it was read, with bytes; `field` is "key" or "value". The consumer's position is at this record:
    the next poll finds it again, unless `seek` goes past it.

    `is_raw`: no deserializer was asked, the log itself has something that is no record. Then `field` may be "headers"
    or another column, and `record` has what can be read.
    """

    def __init__(self, record: ConsumerRecord, field: str, cause: Exception, *, is_raw: bool = False) -> None:
        reader = "the consumer can read" if is_raw else f"{field}_deserializer accepts"
        noun = field if field.endswith("s") else f"a {field}"
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"{record.topic}-{record.partition} at offset {record.offset}: expected {noun} that {reader}, "
            f"found one that raised {type(cause).__name__}: {cause}; seek to {record.offset + 1} to go on behind it",
        )
        self.record = record
        self.field = field

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        return self.record.offset


class Deserializers:
    """False if there are none."""

    def __init__(self, key: Any, value: Any) -> None:
        self._key = _function_of(key)
        self._value = _function_of(value)

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def apply(self, records: Sequence[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """One after another, as they are asked for. Raises `RecordDeserializationError`."""
        return map(self._apply, records)

    def _apply(self, record: ConsumerRecord) -> ConsumerRecord:
        field = "key"
        try:
            key, value = record.key, record.value
            if self._key is not None and key is not None:
                key = self._key(record.topic, record.headers, key)
            field = "value"
            if self._value is not None and value is not None:
                value = self._value(record.topic, record.headers, value)
        except Exception as error:
            raise RecordDeserializationError(record, field, error) from error
        return record._replace(key=key, value=value)


def take_good(records: Iterable[ConsumerRecord], taken: list[ConsumerRecord]) -> RecordDeserializationError | None:
    """Append `records` up to the first one that cannot be deserialized, and give its error."""
    try:
        for record in records:
            taken.append(record)
    except RecordDeserializationError as error:
        return error
    return None


def _function_of(deserializer: Any) -> Callable[[str, Headers, bytes], Any] | None:
    if deserializer is None:
        return None
    method = getattr(deserializer, "deserialize", None)
    if method is not None:
        return method  # type: ignore[no-any-return]

    def deserialize(topic: str, headers: Headers, data: bytes) -> Any:
        return deserializer(data)

    return deserialize
