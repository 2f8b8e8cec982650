"""What is kept of a record of `__consumer_offsets` that cannot be read.

Guards one promise: the loss is the least that is safe. An offset that is certain stays, also if what describes it is
not. Of a group the generation stays, so that nothing of an older one is ever taken for new, and its members join again;
its committed offsets are records of their own. Each fault says which record it is, what is lost and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.consumer_groups.records import GroupRecord, GroupStored, decode_key, decode_record
from bus.model import TopicPartition
from bus.ports import KeyedRow


def salvage_record(row: KeyedRow, error: str, *, now_ms: int) -> tuple[GroupRecord | None, str]:
    """What counts in place of `row`, which `decode_record` refused with `error`; and the fault."""
    try:
        partition, group_id = decode_key(row.key)
    except ValueError:
        return None, f"a record is passed over: {error}"
    if partition is None:
        return _salvage_stored(row.value or {}, group_id, error, now_ms)
    return _salvage_offset(row, group_id, partition, error, now_ms)


def salvage_group(stored: GroupStored, error: str, *, now_ms: int) -> tuple[GroupStored, str]:
    """The same for a group whose fields are right one by one and not together."""
    return _emptied(stored.group_id, stored.protocol_type, stored.generation, now_ms), _members_lost(
        stored.group_id, error
    )


def _salvage_offset(
    row: KeyedRow, group_id: str, partition: TopicPartition, error: str, now_ms: int
) -> tuple[GroupRecord | None, str]:
    where = f"group {group_id!r}, committed offset of {partition}"
    known = row.value or {}
    value = {
        **known,
        "leader_epoch": -1,
        "metadata": known.get("metadata") if isinstance(known.get("metadata"), str) else "",
        "commit_ms": known.get("commit_ms") if _is_long(known.get("commit_ms")) else now_ms,
        "expire_ms": None,
    }
    try:
        record = decode_record(KeyedRow(row.key, value))
    except ValueError:
        return None, f"{where}: it cannot be read and counts as not committed: {error}; commit it again"
    return record, f"{where}: the offset is kept without what could not be read: {error}; commit it again"


def _salvage_stored(value: Mapping[str, Any], group_id: str, error: str, now_ms: int) -> tuple[GroupRecord | None, str]:
    generation, protocol_type = value.get("generation"), value.get("protocol_type")
    if not _is_long(generation) or not isinstance(protocol_type, str):
        lost = f"group {group_id!r} cannot be read, its committed offsets stay: {error}; its members join again"
        return None, lost
    assert isinstance(generation, int)
    return _emptied(group_id, protocol_type, generation, now_ms), _members_lost(group_id, error)


def _emptied(group_id: str, protocol_type: str, generation: int, now_ms: int) -> GroupStored:
    """Empty since now: its offsets do not expire for what the log could not tell."""
    return GroupStored(group_id, protocol_type, None, generation, None, "Empty", now_ms, ())


def _members_lost(group_id: str, error: str) -> str:
    return (
        f"the members of group {group_id!r} cannot be read and have to join again, its generation and its committed "
        f"offsets stay: {error}"
    )


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
