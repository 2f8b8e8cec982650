"""Rows of `__consumer_offsets` written by hand, for those who read that log without a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bus.model import CONSUMER_OFFSETS_TOPIC
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot

NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


class HandWrittenGroups:
    """The log of the groups in a hand-written root."""

    def __init__(self, root: HandWrittenRoot, partitions: int = 2) -> None:
        root.create_topic(CONSUMER_OFFSETS_TOPIC, partitions, CONSUMER_OFFSETS_VALUE_TYPE)
        self._root = root
        self._tables = root.tables[CONSUMER_OFFSETS_TOPIC]

    def commit(
        self, group: str, topic: str, partition: int, offset: int | None, *, topic_id: str | None = None, log: int = 0
    ) -> None:
        """`offset` None deletes what was committed."""
        value = None
        if offset is not None:
            value = {
                "type": "OffsetCommitted",
                "group_id": group,
                "topic": topic,
                "topic_id": topic_id or self.topic_id(topic),
                "partition": partition,
                "committed_offset": offset,
                "leader_epoch": 0,
                "metadata": f"at {offset}",
                "commit_ms": FIRST_TIMESTAMP_MS + offset,
            }
        self._append(log, ["offset", group, topic, partition], value)

    def store(self, group: str, generation: int, members: Sequence[Mapping[str, Any]] | None, *, log: int = 0) -> None:
        """`members` None deletes the group, none at all empties it."""
        value = None
        if members is not None:
            value = {
                "type": "GroupStored",
                "group_id": group,
                "protocol_type": "consumer",
                "protocol": "range" if members else None,
                "generation": generation,
                "leader_id": members[0]["member_id"] if members else None,
                "state": "Stable" if members else "Empty",
                "state_ms": FIRST_TIMESTAMP_MS,
                "members": members,
            }
        self._append(log, ["group", group], value)

    def topic_id(self, topic: str) -> str:
        metadata = (self._root.tables[topic][0].folder / "_delta_log" / f"{0:020}.json").read_text()
        topic_id: str = json.loads(metadata.splitlines()[1])["metaData"]["configuration"]["bus.topic_id"]
        return topic_id

    def _append(self, log: int, key: list[Any], value: Any) -> None:
        self._tables[log].append([json.dumps(key).encode()], [value])


def member(member_id: str, topic: str, partitions: Sequence[int], instance_id: str | None = None) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": instance_id,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 300_000,
        "subscription": b"",
        "topics": [topic],
        "assignment": b"",
        "partitions": [{"topic": topic, "partition": number} for number in partitions],
    }
