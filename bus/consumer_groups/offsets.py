"""Committed offsets of a group: who may commit, fetch and delete them, and when they expire.

Guards the promise to successors: a commit is taken from a member of the current generation or, while a group has no
members, from a consumer that is none; so a zombie never commits over the member that has its partitions now. What a
transaction has pending does not expire and is not deleted with an offset; a later commit without a
transaction takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from bus.consumer_groups import records
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import PARTITIONS_MAX, check_count, check_place
from bus.consumer_groups.group import Group, GroupState, GroupStep
from bus.consumer_groups.membership import check_generation, check_member, rebalancing
from bus.descriptions import PendingOffsets
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.settings.keys import INT_MAX, LONG_MAX


def decide_commit(step: GroupStep, command: rq.OffsetCommit, *, request_id: int) -> None:
    """Each offset is taken or refused by itself once the member may commit at all."""
    refused = _check_committer(step.group, command)
    if refused is not None:
        step.reply(request_id, refused)
        return
    member = step.group.members.get(command.member_id)
    if member is not None:
        step.set_session(member)
    taken, answer = _take_offsets(command, metadata_max_bytes=step.rules.offset_metadata_max_bytes)
    step.record(*(_committed(step, offset) for offset in taken.values()))
    if any(partition in step.group.unstable for partition in taken):
        overtake(step, lambda offset: offset.partition in taken)
    step.reply(request_id, answer)


def overtake(step: GroupStep, is_overtaken: Callable[[rq.OffsetToCommit], bool]) -> None:
    """Take offsets out of the transactions that would commit them: of two commits the one that came later counts, as in
    Kafka, and not the one that is applied later."""
    group = step.group
    for pending in group.pending_offsets.values():
        kept = tuple(offset for offset in pending.offsets if not is_overtaken(offset))
        if len(kept) < len(pending.offsets):
            step.record(replace(pending, offsets=kept))


def _take_offsets(
    command: rq.OffsetCommit | rq.TxnOffsetCommit, *, metadata_max_bytes: int
) -> tuple[dict[TopicPartition, rq.OffsetToCommit], rq.OffsetsCommitted]:
    """Return the valid offsets, and the answer. Of a partition that is named twice the last offset counts."""
    results = tuple(_check_offset(offset, metadata_max_bytes) for offset in command.offsets)
    judged = zip(command.offsets, results, strict=True)
    return {offset.partition: offset for offset, result in judged if result is None}, rq.OffsetsCommitted(results)


def _check_committer(group: Group, command: rq.OffsetCommit | rq.TxnOffsetCommit) -> Refused | None:
    if command.generation < 0 and group.state is GroupState.EMPTY:
        return None
    is_member = command.generation >= 0 or command.member_id != rq.NO_MEMBER_ID or command.group_instance_id is not None
    if group.is_nothing:
        return Refused(
            ErrorCode.ILLEGAL_GENERATION,
            f"group {group.group_id}: expected no generation, for there are no members, found {command.generation}",
        )
    if not is_member:
        return Refused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {group.group_id}: expected the id of a member while it has members, found none",
        )
    refused = check_member(group, command.member_id, command.group_instance_id) or check_generation(
        group, command.generation, command.member_id
    )
    if refused is None and group.state is GroupState.COMPLETING_REBALANCE:
        return rebalancing(group, "it has no assignment yet")
    return refused


def _check_offset(offset: rq.OffsetToCommit, metadata_max_bytes: int) -> Refused | None:
    refused = check_place(offset.partition)
    if refused is not None:
        return refused
    if not 0 <= offset.offset <= LONG_MAX:
        return _invalid(offset, "an offset of 0 or more", offset.offset)
    if not -1 <= offset.leader_epoch <= INT_MAX:
        return _invalid(offset, "a leader epoch of 0 or more, or -1 if it is not known", offset.leader_epoch)
    size = len(offset.metadata) if offset.metadata.isascii() else len(offset.metadata.encode())
    if size > metadata_max_bytes:
        return Refused(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"{offset.partition}: expected at most {metadata_max_bytes} bytes of metadata, found {size}",
        )
    return None


def _invalid(offset: rq.OffsetToCommit, expected: str, found: int) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"{offset.partition}: expected {expected}, found {found}")


def _committed(step: GroupStep, offset: rq.OffsetToCommit) -> records.OffsetCommitted:
    return records.OffsetCommitted(
        step.group.group_id,
        offset.partition,
        offset.topic_id,
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        commit_ms=step.now_ms,
    )


def fetch_offsets(group: Group | None, command: rq.OffsetFetch) -> rq.OffsetsFetched | Refused:
    """Return the offsets. A group that does not exist has none committed. A member that names itself is checked."""
    if group is None:
        return rq.OffsetsFetched(tuple(_no_offset(partition) for partition in command.partitions or ()))
    if command.member_id != rq.NO_MEMBER_ID:
        refused = check_member(group, command.member_id, None)
        if refused is None and command.generation != rq.NO_GENERATION:
            refused = check_generation(group, command.generation, command.member_id)
        if refused is not None:
            return refused
    unstable: Container[TopicPartition] = group.unstable if command.require_stable else ()
    wanted: Iterable[TopicPartition]
    if command.partitions is not None:
        wanted = command.partitions
    elif command.require_stable:
        wanted = dict.fromkeys((*group.offsets, *group.unstable))
    else:
        wanted = group.offsets
    return rq.OffsetsFetched(tuple(_unstable(group, of) if of in unstable else _fetched(group, of) for of in wanted))


def _unstable(group: Group, partition: TopicPartition) -> rq.CommittedOffset:
    return rq.CommittedOffset(partition, "", rq.NO_OFFSET, refused=_refuse_unstable(group, partition))


def _refuse_unstable(group: Group, partition: TopicPartition) -> Refused:
    return Refused(
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        f"group {group.group_id}: a transaction that has not ended may commit an offset of {partition}; retry later",
    )


def _fetched(group: Group, partition: TopicPartition) -> rq.CommittedOffset:
    stored = group.offsets.get(partition)
    if stored is None:
        return _no_offset(partition)
    return rq.CommittedOffset(
        partition, stored.topic_id, stored.offset, stored.leader_epoch, stored.metadata, stored.commit_ms
    )


def _no_offset(partition: TopicPartition) -> rq.CommittedOffset:
    return rq.CommittedOffset(partition, "", rq.NO_OFFSET)


def decide_delete_offsets(step: GroupStep, command: rq.OffsetDelete, *, request_id: int) -> None:
    """Delete offsets, but not of topics that a member subscribes to (KIP-496). For another protocol type the
    subscriptions are unknown."""
    group = step.group
    if group.members and not group.is_of_consumers:
        step.reply(
            request_id,
            Refused(
                ErrorCode.NON_EMPTY_GROUP,
                f"group {group.group_id}: expected no members or protocol type consumer, found {group.protocol_type}",
            ),
        )
        return
    subscribed = group.subscribed_topics()
    results = tuple(_check_deletion(group, partition, subscribed) for partition in command.partitions)
    remove_offsets(step, (p for p, refused in zip(command.partitions, results, strict=True) if refused is None))
    step.reply(request_id, rq.OffsetsDeleted(results))


def _check_deletion(group: Group, partition: TopicPartition, subscribed: Container[str]) -> Refused | None:
    if partition.topic in subscribed:
        return Refused(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            f"{partition}: expected a topic that no member of group {group.group_id} subscribes to",
        )
    return _refuse_unstable(group, partition) if partition in group.unstable else None


def remove_offsets(step: GroupStep, partitions: Iterable[TopicPartition]) -> None:
    group = step.group
    gone = (partition for partition in dict.fromkeys(partitions) if partition in group.offsets)
    step.record(*(records.OffsetTombstone(group.group_id, partition) for partition in gone))


def remove_expired_offsets(step: GroupStep, now_ms: int) -> None:
    """An empty group loses its offsets one retention time after it became empty. A stable group of consumers loses the
    offsets of topics without a subscription, and a group that never had members all, that long after the commit."""
    group = step.group
    if group.protocol_type is not None and group.state is not GroupState.EMPTY:
        if not group.is_of_consumers or group.state is not GroupState.STABLE:
            return
        subscribed = group.subscribed_topics()
    else:
        subscribed = frozenset()
    is_since_empty = group.protocol_type is not None and group.state is GroupState.EMPTY
    remove_offsets(
        step,
        [
            partition
            for partition, stored in group.offsets.items()
            if partition.topic not in subscribed
            and partition not in group.unstable
            and now_ms >= _expires_ms(step, stored, since_ms=group.state_ms if is_since_empty else None)
        ],
    )


def _expires_ms(step: GroupStep, stored: records.OffsetCommitted, *, since_ms: int | None) -> int:
    if stored.expire_ms is not None:
        return stored.expire_ms
    return (stored.commit_ms if since_ms is None else since_ms) + step.rules.offsets_retention_ms


def decide_txn_commit(step: GroupStep, command: rq.TxnOffsetCommit, *, request_id: int) -> None:
    """Decide on a TxnOffsetCommit like `decide_commit`, except that it is no heartbeat: a producer sends it, not the
    member.

    The pending offsets (KIP-98, KIP-447) are records of the group's own log, so a deposed coordinator cannot
    acknowledge one. Guards the promise that acknowledged offsets stay until the transaction ends: only `ApplyOffsets`
    and `DropOffsets` make the group forget a transaction. Offsets that no longer count (their topic is deleted, or a
    commit without a transaction came later) are removed from it; the transaction is known until it ends, perhaps with
    nothing to commit."""
    known = step.group.pending_offsets.get(command.transaction) or _nothing_pending(command)
    taken, answer = _take_offsets(command, metadata_max_bytes=step.rules.offset_metadata_max_bytes)
    offsets = {**{offset.partition: offset for offset in known.offsets}, **taken}
    refused = (
        _check_committer(step.group, command)
        or check_count(len(offsets), PARTITIONS_MAX, "partitions of one transaction")
        or _check_transactions(step, command)
    )
    if refused is not None:
        step.reply(request_id, refused)
        return
    if taken and command.sequence > known.sequence:
        step.record(replace(known, sequence=command.sequence, commit_ms=step.now_ms, offsets=tuple(offsets.values())))
    step.reply(request_id, answer)


def _nothing_pending(command: rq.TxnOffsetCommit) -> records.TxnOffsetsPending:
    return records.TxnOffsetsPending(command.group_id, command.transaction, -1, 0, ())


def _check_transactions(step: GroupStep, command: rq.TxnOffsetCommit) -> Refused | None:
    transactions, most = step.group.pending_offsets, step.rules.pending_transactions_max
    if command.transaction in transactions or len(transactions) < most:
        return None
    return Refused(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"group {command.group_id}: expected fewer than {most} transactions with offsets that have not ended, found "
        f"{len(transactions)}; retry later",
    )


def vote(group: Group | None, command: rq.VoteOffsets) -> rq.OffsetsVoted:
    return rq.OffsetsVoted(group is not None and command.transaction in group.pending_offsets)


def decide_end(step: GroupStep, command: rq.ApplyOffsets | rq.DropOffsets, *, request_id: int) -> None:
    """An offset is committed when its transaction is applied, and expires as one that is committed then. The end is
    logged also where nothing is pending: so a deposed coordinator, whose successor may have something, cannot answer
    that it is done."""
    pending = step.group.pending_offsets.get(command.transaction)
    offsets = pending.offsets if pending is not None and isinstance(command, rq.ApplyOffsets) else ()
    step.record(
        *(_committed(step, offset) for offset in offsets),
        records.TxnOffsetsEnded(command.group_id, command.transaction),
    )
    step.reply(request_id, rq.TxnOffsetsSettled())


def describe_pending(group: Group) -> tuple[PendingOffsets, ...]:
    return tuple(
        PendingOffsets(transaction.producer_id, transaction.producer_epoch, len(pending.offsets), pending.commit_ms)
        for transaction, pending in group.pending_offsets.items()
    )
