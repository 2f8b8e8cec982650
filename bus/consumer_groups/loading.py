"""Loading of groups from the records of their partition, for a new coordinator.

Guards two promises. A new coordinator continues where its predecessor stopped: everything that was acknowledged is
there, and the clients repeat what was under way without a record (a rebalance, a first join). And an unreadable record
costs only what cannot be known safely without it. An offset that is certain stays, even if its metadata are not. A
group keeps its generation, so no older generation is ever taken for a newer one, and its members join again; its
committed offsets are records of their own. All offsets of a transaction are kept, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bus.client_texts import shown
from bus.consumer_groups import requests as rq
from bus.consumer_groups.group import Group, apply
from bus.consumer_groups.records import (
    GroupStored,
    GroupTombstone,
    LoggedRecord,
    OffsetCommitted,
    TxnOffsetsPending,
    approximate_bytes,
    decode_key,
    decode_record,
    encode_record,
)
from bus.errors import ErrorCode, Refused
from bus.machine import Loaded, SetTimer
from bus.model import TopicPartition
from bus.ports import KeyedRow

_FAULT_LENGTH_MAX = 500  # the length of a fault in a message


def read_groups(rows: Iterable[KeyedRow], *, now_ms: int) -> Loaded[Group]:
    """Return the groups after all of `rows`, in the order of the log. The certain part of an unreadable row is kept."""
    faults: list[str] = []
    groups: dict[str, Group] = {}
    for group_id, records in _by_group(_read(rows, faults, now_ms)).items():
        group = _loaded_or_emptied(records, faults, now_ms)
        if group is not None:
            groups[group_id] = group
    return Loaded(groups, tuple(faults))


class GroupCodec:
    """The records of groups as rows of `__consumer_offsets` (`bus.machine.RecordCodec`)."""

    encode = staticmethod(encode_record)
    decode = staticmethod(decode_record)
    approximate_bytes = staticmethod(approximate_bytes)

    def load(self, rows: Iterable[KeyedRow], *, now_ms: int) -> Loaded[Group]:
        loaded = read_groups(rows, now_ms=now_ms)
        return Loaded(loaded.states, tuple(shown(fault, _FAULT_LENGTH_MAX) for fault in loaded.faults))

    def fault(self, record: LoggedRecord, reason: str, *, is_too_large: bool) -> Refused:
        code = ErrorCode.INVALID_REQUEST
        if is_too_large:
            is_offset = isinstance(record, (OffsetCommitted, TxnOffsetsPending))
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_offset else ErrorCode.MESSAGE_TOO_LARGE
        return Refused(code, f"group {record.group_id}: {shown(reason, _FAULT_LENGTH_MAX)}")

    def log_line(self, record: LoggedRecord) -> str | None:
        """A line for each generation with its assignment, and for each group that ends. Offsets have none."""
        match record:
            case GroupStored(group_id, generation=generation, state=state, members=members):
                return f"group {group_id}: {state}, generation {generation}, members: {len(members)}"
            case GroupTombstone(group_id):
                return f"group {group_id} has ended"
            case _:
                return None


def _read(rows: Iterable[KeyedRow], faults: list[str], now_ms: int) -> Iterator[LoggedRecord]:
    for row in rows:
        try:
            record: LoggedRecord | None = decode_record(row)
        except ValueError as error:
            record, fault = _salvage_record(row, str(error), now_ms=now_ms)
            faults.append(fault)
        if record is not None:
            yield record


def _by_group(records: Iterable[LoggedRecord]) -> dict[str, list[LoggedRecord]]:
    found: dict[str, list[LoggedRecord]] = {}
    for record in records:
        found.setdefault(record.group_id, []).append(record)
    return found


def _loaded_or_emptied(records: list[LoggedRecord], faults: list[str], now_ms: int) -> Group | None:
    try:
        return apply(None, records)
    except (ValueError, AssertionError) as error:
        stored = next(record for record in reversed(records) if isinstance(record, GroupStored))
        empty, fault = _salvage_group(stored, str(error), now_ms=now_ms)
        faults.append(fault)
        return apply(None, [empty if isinstance(record, GroupStored) else record for record in records])


def resume_timers(group: Group) -> tuple[SetTimer[rq.GroupCommand], ...]:
    """Set the timers of a group that was just loaded: every session starts again."""
    return tuple(
        SetTimer(rq.GroupTimer(rq.TimerKind.SESSION, group.group_id, member.member_id), member.session_timeout_ms)
        for member in group.members.values()
    )


def _salvage_record(row: KeyedRow, error: str, *, now_ms: int) -> tuple[LoggedRecord | None, str]:
    """Return the record that replaces `row`, which `decode_record` refused with `error`, and the fault."""
    try:
        key = decode_key(row.key)
    except ValueError:
        return None, f"a record is passed over: {error}"
    if key.partition is not None:
        return _salvage_offset(row, key.group_id, key.partition, error, now_ms)
    if key.transaction is not None:
        return None, _pending_lost(key.group_id, key.transaction, error)
    return _salvage_stored(row.value or {}, key.group_id, error, now_ms)


def _salvage_group(stored: GroupStored, error: str, *, now_ms: int) -> tuple[GroupStored, str]:
    """The same for a group whose fields are right one by one and not together."""
    return _emptied(stored.group_id, stored.protocol_type, stored.generation, now_ms), _members_lost(
        stored.group_id, error
    )


def _salvage_offset(
    row: KeyedRow, group_id: str, partition: TopicPartition, error: str, now_ms: int
) -> tuple[LoggedRecord | None, str]:
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


def _salvage_stored(
    value: Mapping[str, Any], group_id: str, error: str, now_ms: int
) -> tuple[LoggedRecord | None, str]:
    generation, protocol_type = value.get("generation"), value.get("protocol_type")
    if not _is_long(generation) or not isinstance(protocol_type, str):
        lost = f"group {group_id!r} cannot be read, its committed offsets stay: {error}; its members join again"
        return None, lost
    assert isinstance(generation, int)
    return _emptied(group_id, protocol_type, generation, now_ms), _members_lost(group_id, error)


def _emptied(group_id: str, protocol_type: str, generation: int, now_ms: int) -> GroupStored:
    """Return a group that is empty from now on: its offsets must not expire because of times that the log could not
    tell."""
    return GroupStored(group_id, protocol_type, None, generation, None, "Empty", now_ms, ())


def _members_lost(group_id: str, error: str) -> str:
    return (
        f"the members of group {group_id!r} cannot be read and have to join again, its generation and its committed "
        f"offsets stay: {error}"
    )


def _pending_lost(group_id: str, transaction: rq.TransactionKey, error: str) -> str:
    """No part of them is kept: without a record the group votes against the transaction, and with half of it for it."""
    return (
        f"group {group_id!r}, offsets of {transaction}: they cannot be read and the transaction cannot be committed: "
        f"{error}; if it was decided before, commit them again"
    )


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
