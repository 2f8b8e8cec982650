"""Rows of `__transaction_state` written by hand, for those who read that log without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.model import TRANSACTION_STATE_TOPIC
from bus.records.log_schema import TRANSACTION_STATE_VALUE_TYPE
from bus.transactions.bounds import coordinator_partition
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot, HandWrittenTable


class HandWrittenTransactions:
    """The log of the transactions in a hand-written root."""

    def __init__(self, root: HandWrittenRoot, partitions: int = 2) -> None:
        root.create_topic(TRANSACTION_STATE_TOPIC, partitions, TRANSACTION_STATE_VALUE_TYPE)
        self.root = root
        self.tables = root.tables[TRANSACTION_STATE_TOPIC]

    def store(
        self,
        transactional_id: str,
        state: str,
        number: int = 1,
        partitions: Mapping[tuple[str, int], tuple[int, int]] | None = None,
        groups: Sequence[str] = (),
        **changed: Any,
    ) -> None:
        """`partitions`: the version and the base offset of each, -1 without rows."""
        value = {
            "type": "TransactionLogged",
            "transactional_id": transactional_id,
            "number": number,
            "producer_id": 7,
            "producer_epoch": number,
            "last_producer_epoch": -1,
            "previous_producer_id": -1,
            "timeout_ms": 60_000,
            "state": state,
            "abort_cause": "timeout" if state.endswith("Abort") else None,
            "partitions": [
                {
                    "topic": topic,
                    "topic_id": self.root.topic_ids[topic],
                    "partition": partition,
                    "last_sequence": 0 if version >= 0 else -1,
                    "version": version,
                    "base_offset": base_offset,
                }
                for (topic, partition), (version, base_offset) in (partitions or {}).items()
            ],
            "groups": [{"group_id": group_id, "offsets_partition": 0} for group_id in groups],
            "start_ms": -1 if state == "Empty" else FIRST_TIMESTAMP_MS,
            "update_ms": FIRST_TIMESTAMP_MS + number,
        } | changed
        self._append(transactional_id, value)

    def expire(self, transactional_id: str) -> None:
        self._append(transactional_id, None)

    def table_of(self, transactional_id: str) -> HandWrittenTable:
        return self.tables[coordinator_partition(transactional_id, len(self.tables))]

    def _append(self, transactional_id: str, value: Any) -> None:
        self.table_of(transactional_id).append([transactional_id.encode()], [value])
