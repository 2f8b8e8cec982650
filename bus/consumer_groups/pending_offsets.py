"""Offsets that are pending: a transaction commits them here, or drops them, when it is decided (KIP-98, KIP-447).

They are records of the group's own log, so a deposed coordinator cannot acknowledge one. Guards the promise that what
was acknowledged is there until the transaction ends: only `ApplyOffsets` and `DropOffsets` make the group forget a
transaction. What no longer counts (its topic is deleted, or a commit without a transaction came later) is taken out of
it; it is still known here, perhaps with nothing to commit, until it ends.
"""

from __future__ import annotations

from dataclasses import replace

from bus.consumer_groups.changes import GroupStep
from bus.consumer_groups.group import Group
from bus.consumer_groups.offsets import check_committer, committed, take_offsets
from bus.consumer_groups.records import TxnOffsetsEnded, TxnOffsetsPending
from bus.consumer_groups.request_bounds import PARTITIONS_MAX, check_count
from bus.consumer_groups.requests import (
    ApplyOffsets,
    DescribedPendingOffsets,
    DropOffsets,
    OffsetsVoted,
    TxnOffsetCommit,
    TxnOffsetsSettled,
    VoteOffsets,
)
from bus.errors import ErrorCode, Refused


def decide_txn_commit(step: GroupStep, command: TxnOffsetCommit, *, request_id: int) -> None:
    """As `decide_commit`, but it is no sign of life: a producer sends it, and not the member."""
    known = step.group.pending_offsets.get(command.transaction) or _nothing_pending(command)
    taken, answer = take_offsets(command, metadata_max_bytes=step.rules.offset_metadata_max_bytes)
    offsets = {**{offset.partition: offset for offset in known.offsets}, **taken}
    refused = (
        check_committer(step.group, command)
        or check_count(len(offsets), PARTITIONS_MAX, "partitions of one transaction")
        or _check_transactions(step, command)
    )
    if refused is not None:
        step.reply(request_id, refused)
        return
    if taken and command.sequence > known.sequence:
        step.record(replace(known, sequence=command.sequence, commit_ms=step.now_ms, offsets=tuple(offsets.values())))
    step.reply(request_id, answer)


def _nothing_pending(command: TxnOffsetCommit) -> TxnOffsetsPending:
    return TxnOffsetsPending(command.group_id, command.transaction, -1, 0, ())


def _check_transactions(step: GroupStep, command: TxnOffsetCommit) -> Refused | None:
    transactions, most = step.group.pending_offsets, step.rules.pending_transactions_max
    if command.transaction in transactions or len(transactions) < most:
        return None
    return Refused(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"group {command.group_id}: expected fewer than {most} transactions with offsets that have not ended, found "
        f"{len(transactions)}; retry later",
    )


def vote(group: Group | None, command: VoteOffsets) -> OffsetsVoted:
    return OffsetsVoted(group is not None and command.transaction in group.pending_offsets)


def decide_end(step: GroupStep, command: ApplyOffsets | DropOffsets, *, request_id: int) -> None:
    """An offset is committed when its transaction is applied, and expires as one that is committed then. The end is
    logged also where nothing is pending: so a deposed coordinator, whose successor may have something, cannot answer
    that it is done."""
    pending = step.group.pending_offsets.get(command.transaction)
    offsets = pending.offsets if pending is not None and isinstance(command, ApplyOffsets) else ()
    step.record(
        *(committed(step, offset) for offset in offsets), TxnOffsetsEnded(command.group_id, command.transaction)
    )
    step.reply(request_id, TxnOffsetsSettled())


def describe_pending(group: Group) -> tuple[DescribedPendingOffsets, ...]:
    return tuple(
        DescribedPendingOffsets(transaction, len(pending.offsets), pending.commit_ms)
        for transaction, pending in group.pending_offsets.items()
    )
