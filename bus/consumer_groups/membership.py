"""Membership of groups: joins, syncs, heartbeats, leaving members, and the rebalances that follow.

Guards the promise of generations: a generation has one set of members and one leader, all members of it have joined for
it (a static one excepted, while its session lasts), and the generation before it ends when it begins. No member leaves
while a request of it waits: the coordinator answers that request first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bus.consumer_groups import records
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import check_request
from bus.consumer_groups.group import (
    DelayRoundBegun,
    GenerationBegun,
    Group,
    GroupRules,
    GroupState,
    GroupStep,
    InitialDelay,
    Member,
    MemberIdGiven,
    MemberIdsForgotten,
    MemberJoins,
    MembersRemoved,
    MemberSynced,
    RebalanceBegun,
    StaticMemberReplaced,
    stored_group,
)
from bus.errors import ErrorCode, Refused

_NAMED_MAX = 5
_MAY_REBALANCE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
_TAKEN = rq.HeartbeatTaken()


def decide_join(step: GroupStep, command: rq.JoinGroup, *, request_id: int) -> None:
    """Decide on a JoinGroup request: admit the member, and begin a rebalance if one is needed.

    Guards two promises: a member id is given once, and only the client that it was given to joins with it (KIP-394); an
    instance id has one member at a time, the last one that came without a member id (KIP-345).
    """
    group = step.group
    is_first = command.member_id == rq.NO_MEMBER_ID
    if (refused := _check_session_timeout(command, step.rules)) is not None:
        _refuse(step, request_id, refused, command.member_id)
    elif group.is_nothing and not is_first:
        _refuse(step, request_id, unknown_member(group.group_id, command.member_id), command.member_id)
    elif not _has_room(group, command.member_id, step.rules):
        _refuse_for_size(step, command, request_id)
    elif (refused := _check_protocols(group, command)) is not None:
        _refuse(step, request_id, refused, command.member_id)
    elif not is_first:
        _join_known(step, command, request_id)
    elif command.group_instance_id is None:
        _give_member_id(step, command, request_id)
    elif command.group_instance_id in group.instance_ids:
        _replace_static(step, command, request_id)
    else:
        _add_member(step, command, command.new_member_id, request_id)


def _check_session_timeout(command: rq.JoinGroup, rules: GroupRules) -> Refused | None:
    low, high = rules.min_session_timeout_ms, rules.max_session_timeout_ms
    if not low <= command.session_timeout_ms <= high:
        return Refused(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"expected a session timeout from {low} to {high} ms, found {command.session_timeout_ms}",
        )
    return None


def _has_room(group: Group, member_id: str, rules: GroupRules) -> bool:
    """While members join again those who have done so count, so that the last ones of a group too large are out."""
    member = group.members.get(member_id)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            is_in = member is not None and member.awaiting_join is not None
            return is_in or group.joining_count < rules.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < rules.max_size
        case _:
            return True


def _refuse_for_size(step: GroupStep, command: rq.JoinGroup, request_id: int) -> None:
    max_size = step.rules.max_size
    refused = Refused(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {command.group_id}: expected at most {max_size} members, found one more",
    )
    _refuse(step, request_id, refused, rq.NO_MEMBER_ID)
    if command.member_id in step.group.pending_members:
        remove_pending(step, [command.member_id])
    elif command.member_id in step.group.members:
        _remove_members(step, {command.member_id: "the group is too large"})
    _complete_if_all_joined(step)


def _give_member_id(step: GroupStep, command: rq.JoinGroup, request_id: int) -> None:
    new_member_id, pending_max = command.new_member_id, step.rules.pending_members_max
    if len(step.group.pending_members) >= pending_max:
        message = f"group {command.group_id}: {pending_max} new members have their ids and have not joined; retry later"
        _refuse(step, request_id, Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message), rq.NO_MEMBER_ID)
        return
    step.record(MemberIdGiven(command.group_id, new_member_id))
    step.set_timer(rq.TimerKind.PENDING_MEMBER, command.session_timeout_ms, new_member_id)
    refused = Refused(
        ErrorCode.MEMBER_ID_REQUIRED,
        f"group {command.group_id}: expected a member id, found none; join again with {new_member_id}",
    )
    _refuse(step, request_id, refused, new_member_id)


def _join_known(step: GroupStep, command: rq.JoinGroup, request_id: int) -> None:
    group, member_id = step.group, command.member_id
    if member_id in group.pending_members and command.group_instance_id is None:
        _add_member(step, command, member_id, request_id)
        return
    refused = check_member(group, member_id, command.group_instance_id)
    if refused is not None:
        _refuse(step, request_id, refused, member_id)
        return
    member = group.members[member_id]
    if _knows_enough(group, member, command):
        step.reply(request_id, _joined(group, member_id))
        return
    _update_member(step, member, command, request_id)


def _knows_enough(group: Group, member: Member, command: rq.JoinGroup) -> bool:
    """True if a member that joins with unchanged protocols may get the existing generation; it may have missed its
    answer. The leader of a stable group joins to get a new assignment."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != _joining_member(command, "", 0).protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or member.member_id != group.leader_id


def _replace_static(step: GroupStep, command: rq.JoinGroup, request_id: int) -> None:
    """A static member has restarted: it takes the place of its older twin, and the assignment with it."""
    assert command.group_instance_id is not None
    old = step.group.members[step.group.instance_ids[command.group_instance_id]]
    member = replace(
        _joining_member(command, command.new_member_id, request_id),
        assignment=old.assignment,
        has_to_sync=old.has_to_sync,
    )
    twin = _fenced(step.group, command.group_instance_id, old.member_id)
    _dismiss(step, old, twin, old.member_id)
    step.record(StaticMemberReplaced(command.group_id, old.member_id, member))
    step.set_session(member)
    reason = _because(member.member_id, f"takes the place of {old.member_id}", command)
    match step.group.state:
        case GroupState.STABLE if step.group.selected_protocol() == step.group.protocol:
            _go_on_with(step, member, request_id)
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            # Not stable yet: the leader may be about to assign partitions to the id that is no more.
            _begin_rebalance(step, reason)
        case _:
            _complete_if_all_joined(step)


def _go_on_with(step: GroupStep, member: Member, request_id: int) -> None:
    """Answer a join without a rebalance. A member that leads gets all members and their subscriptions, to see what has
    changed, but does not assign (KIP-814)."""
    step.record(stored_group(step.group, GroupState.STABLE, at_ms=step.group.state_ms))
    is_leader = step.group.leader_id == member.member_id
    step.reply(request_id, _joined(step.group, member.member_id, skip_assignment=is_leader))


def _refuse(step: GroupStep, request_id: int, refused: Refused, member_id: str) -> None:
    step.reply(request_id, rq.JoinRefused(refused, member_id))


def _because(member_id: str, what: str, command: rq.JoinGroup) -> str:
    return f"member {member_id} {what}" + (f" ({command.reason})" if command.reason else "")


def _add_member(step: GroupStep, command: rq.JoinGroup, member_id: str, request_id: int) -> None:
    """A new member, whose join waits. It is not asked for heartbeats before it has its first answer."""
    member = replace(_joining_member(command, member_id, request_id), is_new=True)
    step.record(MemberJoins(step.group.group_id, command.protocol_type, member))
    step.cancel_timer(rq.TimerKind.PENDING_MEMBER, member_id)
    step.set_timer(rq.TimerKind.SESSION, step.rules.new_member_join_timeout_ms, member_id)
    _rebalance_or_complete(step, _because(member_id, "joins", command))


def _update_member(step: GroupStep, member: Member, command: rq.JoinGroup, request_id: int) -> None:
    """A member joins again. If a join of it waits, that one was given up by the client. Its instance id stays, also if
    it does not say it."""
    joining = replace(
        _joining_member(command, member.member_id, request_id),
        group_instance_id=member.group_instance_id,
        assignment=member.assignment,
        is_new=member.is_new,
        awaiting_sync=member.awaiting_sync,
        has_to_sync=member.has_to_sync,
    )
    if member.awaiting_join is not None:
        step.reply(member.awaiting_join, rq.JoinRefused(_replaced(step.group, member), member.member_id))
    step.record(MemberJoins(step.group.group_id, command.protocol_type, joining))
    _rebalance_or_complete(step, _because(member.member_id, "joins again", command))


def _joining_member(command: rq.JoinGroup, member_id: str, request_id: int) -> Member:
    return Member(
        member_id,
        command.group_instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms if command.rebalance_timeout_ms > 0 else command.session_timeout_ms,
        _distinct(command.protocols),
        awaiting_join=request_id,
    )


def _distinct(protocols: Sequence[rq.GroupProtocol]) -> tuple[rq.GroupProtocol, ...]:
    """Each name once, where it came first."""
    first: dict[str, rq.GroupProtocol] = {}
    for offer in protocols:
        first.setdefault(offer.name, offer)
    return tuple(first.values())


def _check_protocols(group: Group, command: rq.JoinGroup) -> Refused | None:
    """A member needs a protocol, and one that all others support as well."""
    offered = ", ".join(offer.name for offer in command.protocols) or "none"
    if not command.protocol_type or not command.protocols:
        found = f"type {command.protocol_type or 'none'} and {offered}"
        return _inconsistent(group, f"expected a protocol type and a protocol, found {found}")
    if group.state is GroupState.EMPTY:
        return None
    if command.protocol_type != group.protocol_type:
        return _inconsistent(group, f"expected protocol type {group.protocol_type}, found {command.protocol_type}")
    if not group.has_common_protocol(command.protocols):
        common = ", ".join(name for name, count in group.supporters.items() if count == len(group.members)) or "any"
        return _inconsistent(group, f"expected a protocol that all members support ({common}), found {offered}")
    return None


def _inconsistent(group: Group, message: str) -> Refused:
    return Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id}: {message}")


def decide_sync(step: GroupStep, command: rq.SyncGroup, *, request_id: int) -> None:
    """Decide on a SyncGroup request: the leader brings the assignment, and every member takes its own.

    Guards the promise of ownership: a member gets an assignment only in the generation that it was made for, and only
    once it is in the log, so the next coordinator knows the same owners.
    """
    group = step.group
    refused = (
        check_member(group, command.member_id, command.group_instance_id)
        or check_generation(group, command.generation, command.member_id)
        or _check_protocol(group, command)
    )
    if refused is not None:
        step.reply(request_id, refused)
    elif group.state is GroupState.PREPARING_REBALANCE:
        step.reply(request_id, rebalancing(group, "join again"))
    elif group.state is GroupState.COMPLETING_REBALANCE:
        _await_assignment(step, command, request_id)
    else:
        member = group.members[command.member_id]
        if member.has_to_sync:
            _note_sync(step, member, awaiting_sync=None)
        step.reply(request_id, _synced(group, member))


def _check_protocol(group: Group, command: rq.SyncGroup) -> Refused | None:
    for what, expected, found in (
        ("protocol type", group.protocol_type, command.protocol_type),
        ("protocol", group.protocol, command.protocol),
    ):
        if found is not None and expected is not None and found != expected:
            return Refused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id}: expected {what} {expected}, found {found}",
            )
    return None


def _await_assignment(step: GroupStep, command: rq.SyncGroup, request_id: int) -> None:
    member = step.group.members[command.member_id]
    if member.awaiting_sync is not None:
        step.reply(member.awaiting_sync, _replaced(step.group, member))
    _note_sync(step, member, awaiting_sync=request_id)
    if command.member_id == step.group.leader_id:
        _assign(step, command.assignments)


def _note_sync(step: GroupStep, member: Member, *, awaiting_sync: int | None) -> None:
    step.record(MemberSynced(step.group.group_id, member.member_id, awaiting_sync))
    if not step.group.unsynced_count:
        step.cancel_timer(rq.TimerKind.SYNC)


def _assign(step: GroupStep, assignments: Mapping[str, rq.Assignment]) -> None:
    """Members that the leader left out get nothing."""
    waiting = [member for member in step.group.members.values() if member.awaiting_sync is not None]
    step.record(stored_group(step.group, GroupState.STABLE, at_ms=step.now_ms, assignments=assignments))
    for member in waiting:
        assert member.awaiting_sync is not None
        step.reply(member.awaiting_sync, _synced(step.group, step.group.members[member.member_id]))
        step.set_session(member)


def _synced(group: Group, member: Member) -> rq.Synced:
    assert group.protocol_type is not None
    assert group.protocol is not None
    return rq.Synced(group.protocol_type, group.protocol, member.assignment.data)


def expire_syncs(step: GroupStep) -> None:
    """Remove the members that have the answer to their join and have not synced in time."""
    late = [member.member_id for member in step.group.members.values() if member.has_to_sync]
    _remove_members(step, dict.fromkeys(late, "it did not sync in time"))
    _begin_rebalance(step, f"members {_named(late)} did not sync in time")


def check_heartbeat(group: Group | None, command: rq.Heartbeat) -> rq.HeartbeatTaken | Refused:
    """Check a heartbeat by a few look-ups. The session of the member starts again if the answer `is_sign_of_life`.

    Guards liveness: a member that sends nothing for its session timeout is removed, unless the coordinator itself keeps
    it waiting for an answer."""
    if group is None:
        return check_request(None, command) or unknown_member(command.group_id, command.member_id)
    if command.group_instance_id is not None or command.member_id not in group.members:
        refused = check_request(group, command) or check_member(group, command.member_id, command.group_instance_id)
        if refused is not None:
            return refused
    if command.generation != group.generation:
        refused = check_generation(group, command.generation, command.member_id)
        assert refused is not None
        return refused
    if group.state is GroupState.PREPARING_REBALANCE:
        return rebalancing(group, "join again")
    return _TAKEN


def is_sign_of_life(answer: rq.GroupAnswer) -> bool:
    """True if the answer to a heartbeat proves a member of this generation, even one that has to join again."""
    return isinstance(answer, rq.HeartbeatTaken) or (
        isinstance(answer, Refused) and answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    )


def decide_heartbeat(step: GroupStep, command: rq.Heartbeat, *, request_id: int) -> None:
    answer = check_heartbeat(step.group, command)
    if is_sign_of_life(answer):
        step.set_session(step.group.members[command.member_id])
    step.reply(request_id, answer)


def expire_session(step: GroupStep, member_id: str) -> None:
    """A new member's join may not wait for ever; every other member that waits for an answer is spared: its session
    starts again with the answer."""
    member = step.group.members.get(member_id)
    if member is None:
        return
    is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
    if is_waiting and not member.is_new:
        return
    _remove_members(step, {member_id: f"no heartbeat for {member.session_timeout_ms} ms"})
    if step.group.state is GroupState.PREPARING_REBALANCE:
        _complete_when_all_joined(step)
    else:
        _begin_rebalance(step, f"member {member_id} is lost")


def expire_pending_member(step: GroupStep, member_id: str) -> None:
    if member_id in step.group.pending_members:
        remove_pending(step, [member_id])
        _complete_when_all_joined(step)


def decide_leave(step: GroupStep, command: rq.LeaveGroup, *, request_id: int) -> None:
    """Decide on a LeaveGroup request: all that can leave do, and one rebalance follows if one of them was a member."""
    reasons: dict[str, str] = {}  # member id -> the reason why it leaves
    pending: dict[str, None] = {}
    members = tuple(_leave(step.group, leaving, reasons, pending) for leaving in command.members)
    remove_pending(step, pending)
    _remove_members(step, reasons)
    step.reply(request_id, rq.MembersRemoved(members))
    if reasons:
        _rebalance_or_complete(step, f"members {_named(list(reasons))} leave")
    elif pending:
        _complete_if_all_joined(step)


def _leave(
    group: Group, leaving: rq.LeavingMember, reasons: dict[str, str], pending: dict[str, None]
) -> Refused | None:
    """Why it cannot; None: it was added to `reasons`, or to `pending`."""
    member_id = leaving.member_id
    if member_id in group.pending_members and member_id not in pending:
        pending[member_id] = None
        return None
    if member_id == rq.NO_MEMBER_ID and leaving.group_instance_id is not None:
        member_id = group.instance_ids.get(leaving.group_instance_id, rq.NO_MEMBER_ID)
    refused = check_member(group, member_id, leaving.group_instance_id)
    if refused is not None:
        return refused
    if member_id in reasons:
        return unknown_member(group.group_id, member_id)
    reasons[member_id] = f"it left{f' ({leaving.reason})' if leaving.reason else ''}"
    return None


def _rebalance_or_complete(step: GroupStep, reason: str) -> None:
    """After a member came, changed or went."""
    if step.group.state in _MAY_REBALANCE:
        _begin_rebalance(step, reason)
    else:
        _complete_if_all_joined(step)


def _begin_rebalance(step: GroupStep, reason: str) -> None:
    group, delay_ms = step.group, step.rules.initial_rebalance_delay_ms
    is_initial = group.state is GroupState.EMPTY
    delay = InitialDelay(max(group.rebalance_timeout_ms - delay_ms, 0)) if is_initial else None
    refusal = rebalancing(group, reason)
    for member in group.members.values():
        if member.awaiting_sync is not None:
            step.reply(member.awaiting_sync, refusal)
            step.set_session(member)
        elif member.awaiting_join is None:
            step.notify(member.member_id, refusal)
    step.cancel_timer(rq.TimerKind.SYNC)
    step.record(RebalanceBegun(group.group_id, step.now_ms, delay))
    if is_initial:
        step.set_timer(rq.TimerKind.REBALANCE, delay_ms)
    elif step.group.has_all_joined:
        _complete_rebalance(step)
    else:
        step.set_timer(rq.TimerKind.REBALANCE, step.group.rebalance_timeout_ms)


def _complete_if_all_joined(step: GroupStep) -> None:
    """The first rebalance of an empty group is not cut short: others are expected."""
    group = step.group
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None and group.has_all_joined:
        _complete_rebalance(step)


def _complete_when_all_joined(step: GroupStep) -> None:
    """Complete the rebalance if all members have joined. As in Kafka this also ends the initial delay: the member that
    it waited for is not coming."""
    if step.group.state is GroupState.PREPARING_REBALANCE and step.group.has_all_joined:
        _complete_rebalance(step)


def expire_rebalance(step: GroupStep) -> None:
    """The time is over for those who have not joined, or a round of the initial delay is."""
    delay = step.group.initial_delay
    if delay is None or not delay.has_new_member or not delay.remaining_ms:
        _complete_rebalance(step)
        return
    round_ms = min(step.rules.initial_rebalance_delay_ms, delay.remaining_ms)
    step.record(DelayRoundBegun(step.group.group_id, InitialDelay(delay.remaining_ms - round_ms)))
    step.set_timer(rq.TimerKind.REBALANCE, round_ms)


def _complete_rebalance(step: GroupStep) -> None:
    """Remove the members that have not joined, except static members, which leave when their sessions expire. If only
    such static members are missing, wait on."""
    step.cancel_timer(rq.TimerKind.REBALANCE)
    missing = [
        member.member_id
        for member in step.group.members.values()
        if member.awaiting_join is None and member.group_instance_id is None
    ]
    _remove_members(step, dict.fromkeys(missing, "it did not join again in time"))
    group = step.group
    if not group.members:
        step.record(_without_members(group, at_ms=step.now_ms))
    elif not group.joining_count:
        step.set_timer(rq.TimerKind.REBALANCE, group.rebalance_timeout_ms)
    else:
        _begin_generation(step)


def _without_members(group: Group, *, at_ms: int) -> records.GroupStored:
    assert group.state is GroupState.PREPARING_REBALANCE, f"group {group.group_id} is {group.state.value}"
    assert group.protocol_type is not None
    generation = group.generation + 1
    return records.GroupStored(
        group.group_id, group.protocol_type, None, generation, None, GroupState.EMPTY.value, at_ms, ()
    )


def _begin_generation(step: GroupStep) -> None:
    group = step.group
    waiting = {m.member_id: m.awaiting_join for m in group.members.values() if m.awaiting_join is not None}
    leader_id = group.leader_id if group.leader_id in waiting else next(iter(waiting))
    step.record(GenerationBegun(group.group_id, step.now_ms, group.selected_protocol(), leader_id))
    for member_id, request_id in waiting.items():
        step.reply(request_id, _joined(step.group, member_id))
    for member in step.group.members.values():
        step.set_session(member)
    step.set_timer(rq.TimerKind.SYNC, group.rebalance_timeout_ms)


def _joined(group: Group, member_id: str, *, skip_assignment: bool = False) -> rq.Joined:
    """Return the answer for a member of the current generation; the leader gets all members."""
    assert group.protocol_type is not None
    assert group.protocol is not None
    assert group.leader_id is not None
    return rq.Joined(
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader_id,
        member_id,
        _joined_members(group, group.protocol, is_kept=skip_assignment) if member_id == group.leader_id else (),
        skip_assignment,
    )


def _joined_members(group: Group, protocol: str, *, is_kept: bool) -> tuple[rq.JoinedMember, ...]:
    return tuple(
        rq.JoinedMember(
            member.member_id,
            member.group_instance_id,
            member.metadata(protocol).metadata,
            member.assignment.data if is_kept else b"",
        )
        for member in group.members.values()
    )


def check_member(group: Group, member_id: str, group_instance_id: str | None) -> Refused | None:
    """Check a call of a member. The replaced twin of a static member gets FENCED_INSTANCE_ID and nothing else."""
    if group_instance_id is not None:
        known = group.instance_ids.get(group_instance_id)
        if known is not None and known != member_id:
            return _fenced(group, group_instance_id, member_id)
        if known is None:
            return Refused(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group.group_id}: expected the instance id of a member, found {group_instance_id}",
            )
    return None if member_id in group.members else unknown_member(group.group_id, member_id)


def check_generation(group: Group, generation: int, member_id: str) -> Refused | None:
    if generation == group.generation:
        return None
    return Refused(
        ErrorCode.ILLEGAL_GENERATION,
        f"group {group.group_id}, member {member_id}: expected generation {group.generation}, found {generation}",
    )


def unknown_member(group_id: str, member_id: str) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"group {group_id}: expected the id of a member, found {member_id or 'an empty one'}",
    )


def _fenced(group: Group, group_instance_id: str, member_id: str) -> Refused:
    return Refused(
        ErrorCode.FENCED_INSTANCE_ID,
        f"group {group.group_id}: instance id {group_instance_id} has a newer member than {member_id}",
    )


def _named(member_ids: Sequence[str]) -> str:
    """Return a few of the ids, for a message that every member gets."""
    others = len(member_ids) - _NAMED_MAX
    return ", ".join(member_ids[:_NAMED_MAX]) + (f" and {others} more" if others > 0 else "")


def rebalancing(group: Group, reason: str) -> Refused:
    return Refused(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} rebalances: {reason}")


def _remove_members(step: GroupStep, reasons: Mapping[str, str]) -> None:
    """Remove the members. `reasons`, by member id, go into the members' answers."""
    group = step.group
    for member_id, reason in reasons.items():
        refused = Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id}: member {member_id} is out: {reason}")
        _dismiss(step, group.members[member_id], refused, rq.NO_MEMBER_ID)
    if reasons:
        step.record(MembersRemoved(group.group_id, tuple(reasons)))


def remove_pending(step: GroupStep, member_ids: Collection[str]) -> None:
    for member_id in member_ids:
        step.cancel_timer(rq.TimerKind.PENDING_MEMBER, member_id)
    if member_ids:
        step.record(MemberIdsForgotten(step.group.group_id, tuple(member_ids)))


def _dismiss(step: GroupStep, member: Member, refused: Refused, joins_with: str) -> None:
    """Refuse the join and the sync that wait for this member, which is about to go; without any, notify it."""
    if member.awaiting_join is not None:
        step.reply(member.awaiting_join, rq.JoinRefused(refused, joins_with))
    if member.awaiting_sync is not None:
        step.reply(member.awaiting_sync, refused)
    if member.awaiting_join is None and member.awaiting_sync is None:
        step.notify(member.member_id, refused)
    step.cancel_timer(rq.TimerKind.SESSION, member.member_id)


def _replaced(group: Group, member: Member) -> Refused:
    return rebalancing(group, f"member {member.member_id} has sent the same request again")
