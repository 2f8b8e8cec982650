from __future__ import annotations

import json
from typing import Any

import pytest

from bus.client.consumer.records import Deserializers, RecordDeserializationError, take_good
from bus.client.values import ConsumerRecord
from bus.errors import ErrorCode
from bus.model import TimestampType, TopicPartition


def record(offset: int, value: bytes | None, key: bytes | None = None) -> ConsumerRecord:
    return ConsumerRecord("t", 1, offset, 5, TimestampType.CREATE_TIME, key, value, [("h", b"1")], 0)


class WithTopic:
    def deserialize(self, topic: str, headers: Any, data: bytes) -> tuple[str, Any, bytes]:
        return topic, headers, data


def test_functions_and_objects_get_what_they_need() -> None:
    (found,) = Deserializers(WithTopic(), json.loads).apply([record(0, b'{"a": 1}', b"k")])
    assert (found.key, found.value) == (("t", [("h", b"1")], b"k"), {"a": 1})
    assert (found.offset, found.headers) == (0, [("h", b"1")])


def test_record_without_a_value_is_seen_by_no_deserializer() -> None:
    (found,) = Deserializers(int, int).apply([record(0, None)])
    assert (found.key, found.value) == (None, None)


def test_without_any_there_is_nothing_to_do() -> None:
    assert not Deserializers(None, None)
    assert Deserializers(None, int)


@pytest.mark.parametrize(("field", "key", "value"), [("key", b"x", b"1"), ("value", b"1", b"x")])
def test_error_names_the_record_and_leaves_those_before_it(field: str, key: bytes, value: bytes) -> None:
    taken: list[ConsumerRecord] = []
    poison = record(4, value, key)
    error = take_good(Deserializers(int, int).apply([record(3, b"1", b"1"), poison, record(5, b"2")]), taken)
    assert isinstance(error, RecordDeserializationError)
    assert [good.offset for good in taken] == [3]
    assert (error.field, error.record, error.partition, error.offset) == (field, poison, TopicPartition("t", 1), 4)
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.message.startswith(f"t-1 at offset 4: expected a {field} that {field}_deserializer accepts")
    assert isinstance(error.__cause__, ValueError)
