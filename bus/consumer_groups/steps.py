"""What a decision about a group wants done: values that the runtime carries out, in one order.

The order: the records of all decisions that were taken together are committed as one batch; then the group is replaced
by the one of the step, timers are set, replies are sent and members are told. If the commit fails nothing of the step
happens, and what the runtime knew of the log's groups is read anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bus.consumer_groups import requests as rq
from bus.consumer_groups.group import Group
from bus.consumer_groups.records import GroupRecord
from bus.errors import Refused

GroupCommand = (
    rq.JoinGroup
    | rq.SyncGroup
    | rq.Heartbeat
    | rq.LeaveGroup
    | rq.OffsetCommit
    | rq.OffsetFetch
    | rq.OffsetDelete
    | rq.DescribeGroup
    | rq.DeleteGroup
)
GroupAnswer = (
    rq.Joined
    | rq.JoinRefused
    | rq.Synced
    | rq.HeartbeatTaken
    | rq.Left
    | rq.OffsetsCommitted
    | rq.OffsetsFetched
    | rq.OffsetsDeleted
    | rq.DescribedGroup
    | rq.GroupDeleted
    | Refused
)


class TimerKind(Enum):
    SESSION = "session"  # of a member: no sign of life
    PENDING_MEMBER = "pending member"  # got an id with MEMBER_ID_REQUIRED and did not come back
    REBALANCE = "rebalance"  # of a group: who has not joined by then is out; the initial delay as well
    SYNC = "sync"  # of a group: who has not synced by then is out


@dataclass(frozen=True, slots=True)
class GroupTimer:
    kind: TimerKind
    group_id: str
    member_id: str = ""  # of SESSION and PENDING_MEMBER


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Replaces the timer of the same identity."""

    timer: GroupTimer
    after_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Of no effect if there is none."""

    timer: GroupTimer


@dataclass(frozen=True, slots=True)
class Reply:
    """To the command that was given this request id, at whatever time: a join is answered when all have joined."""

    request_id: int
    answer: GroupAnswer


@dataclass(frozen=True, slots=True)
class Notice:
    """What the next heartbeat of the member would be told, told now: REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID."""

    member_id: str
    refused: Refused


@dataclass(frozen=True, slots=True)
class GroupStep:
    group: Group | None  # as it is after the step; None: there is none (any more)
    records: tuple[GroupRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    notices: tuple[Notice, ...] = ()
