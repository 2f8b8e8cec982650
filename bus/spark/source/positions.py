"""The positions at which a query begins or ends in its partitions, as its options say it, and offsets as JSON.

The JSON of a query's offsets is Kafka's, `{"orders":{"0":23,"1":5}}`, and under the empty name, which no topic has,
what is ours: the ids of the topics, so that one that was deleted and made again is noticed, and an id of the query,
which lives in its checkpoint. Guards one promise: what was not written by us is never taken for an offset of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from bus.model import TopicPartition
from bus.ports import OFFSET_MAX
from bus.records.json_text import parse_strict
from bus.spark.source.planning import Sharing

LATEST_OFFSET = -1
EARLIEST_OFFSET = -2


class Edge(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; `LATEST_OFFSET` and `EARLIEST_OFFSET` stand for the edges."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in all partitions."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtGroup:
    """The offsets that this consumer group has committed; the earliest where it has committed none."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AtVersions:
    """The high watermark that a Delta version of the partition's table left: one number for all, or one for each."""

    versions: int | Mapping[TopicPartition, int]


Position = Edge | AtOffsets | AtTime | AtTimes | AtGroup | AtVersions


class NotOffsets(ValueError):
    """This text is no JSON of offsets; the message says what was expected and found."""


class KafkaOffsets(NotOffsets):
    """Offsets that Spark's Kafka source wrote: they have no topic ids."""


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """How far a query has come, and how many offsets it has passed since it began because their records were gone."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    query_id: str
    lost: int = 0
    sharing: Sharing | None = None  # of the batch that ends here; None: as is fit when it runs
    begun: Mapping[TopicPartition, int] | None = None  # of the first batch: where it began, before `offsets`

    def encode(self) -> dict[str, Any]:
        """Return JSON data, sorted: equal offsets give equal texts."""
        topic_ids = dict(sorted(self.topic_ids.items()))
        ours: dict[str, Any] = {"lost_offsets": self.lost, "query_id": self.query_id, "topic_ids": topic_ids}
        if self.sharing is not None:
            ours["sharing"] = asdict(self.sharing)
        if self.begun is not None:
            ours["begun"] = encode_partitions(self.begun)
        return {**encode_partitions(self.offsets), "": ours}


def decode_query_offsets(data: Any) -> QueryOffsets:
    """Raises `NotOffsets`, and `KafkaOffsets` for those of a Kafka query."""
    if not isinstance(data, dict):
        raise NotOffsets(f"expected a JSON object of offsets, found {data!r}")
    offsets = decode_partitions({name: partitions for name, partitions in data.items() if name}, "an offset")
    ours = data.get("")
    if ours is None:
        raise KafkaOffsets(f"expected offsets with topic ids, found those of a Kafka source: {json.dumps(data)}")
    topics = {partition.topic for partition in offsets}
    topic_ids = ours.get("topic_ids") if isinstance(ours, dict) else None
    if not isinstance(topic_ids, dict) or not topics <= topic_ids.keys():
        raise NotOffsets(f"expected the ids of the topics {', '.join(sorted(topics))}, found {ours!r}")
    lost = ours.get("lost_offsets", 0)
    if isinstance(lost, bool) or not isinstance(lost, int):
        raise NotOffsets(f"expected the number of lost offsets, found {lost!r}")
    begun = ours.get("begun")
    return QueryOffsets(
        offsets,
        topic_ids,
        str(ours.get("query_id", "")),
        lost,
        _decode_sharing(ours.get("sharing")),
        None if begun is None else decode_partitions(begun, "an offset"),
    )


def _decode_sharing(data: Any) -> Sharing | None:
    if data is None:
        return None
    names = {field.name for field in fields(Sharing)}
    if not isinstance(data, dict) or data.keys() != names or not isinstance(data["cores"], int):
        raise NotOffsets(f"expected how tasks share a batch, {', '.join(sorted(names))}, found {data!r}")
    return Sharing(**data)


def encode_partitions(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """`{"orders":{"0":23}}` as data, sorted."""
    encoded: dict[str, dict[str, int]] = {}
    for partition in sorted(numbers):
        encoded.setdefault(partition.topic, {})[str(partition.partition)] = numbers[partition]
    return encoded


def parse_partitions(text: str, what: str) -> dict[TopicPartition, int]:
    """`{"orders":{"0":23}}` as numbers; `what` they are is for the message. Raises `NotOffsets`."""
    try:
        data = parse_strict(text)
    except ValueError as error:
        raise NotOffsets(f'expected JSON like {{"orders":{{"0":23}}}}, found {text!r}: {error}') from None
    return decode_partitions(data, what)


def decode_partitions(data: Any, what: str) -> dict[TopicPartition, int]:
    if not isinstance(data, dict) or not all(isinstance(partitions, dict) for partitions in data.values()):
        raise NotOffsets(f'expected JSON like {{"orders":{{"0":23}}}}, found {json.dumps(data)}')
    found: dict[TopicPartition, int] = {}
    for topic, partitions in data.items():
        for number, value in partitions.items():
            if not number.isascii() or not number.isdecimal():
                raise NotOffsets(f"expected a partition of {topic}, a number from 0 on, found {number!r}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise NotOffsets(f"expected {what} for partition {number} of {topic}, found {value!r}")
            if value > OFFSET_MAX:
                raise NotOffsets(f"expected {what} up to {OFFSET_MAX} for partition {number} of {topic}, found {value}")
            partition = TopicPartition(topic, int(number))
            if partition in found:
                raise NotOffsets(f"expected each partition of {topic} once, found {number!r} beside {int(number)}")
            found[partition] = value
    return found


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """`{"orders":[0,1]}`. Raises `NotOffsets`."""
    expected = 'expected JSON like {"orders":[0,1]}'
    try:
        data = parse_strict(text)
    except ValueError as error:
        raise NotOffsets(f"{expected}, found {text!r}: {error}") from None
    if not isinstance(data, dict) or not all(isinstance(numbers, list) for numbers in data.values()):
        raise NotOffsets(f"{expected}, found {text!r}")
    partitions = set()
    for topic, numbers in data.items():
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise NotOffsets(f"{expected}, found partition {number!r} of {topic}")
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise NotOffsets(f"{expected} with at least one partition, found {text!r}")
    return tuple(sorted(partitions))
