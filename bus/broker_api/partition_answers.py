"""Answers of partitions: of several that were asked at once, and who leads one that was asked at the wrong broker.

Guards one promise: each partition that was asked has one answer, in the order of the questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.cluster_metadata.cluster import ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.loop_shares import LoopShare

T = TypeVar("T")
_WRONG_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(frozen=True, slots=True)
class CurrentLeader:
    endpoint: BrokerEndpoint
    leader_epoch: int


def find_current_leader(state: ClusterState, partition: TopicPartition, result: object) -> CurrentLeader | None:
    """What the caller is told beside `result`, so that it need not ask for metadata (KIP-951): None unless that is a
    refusal for the leader or its epoch, and while no leader can be reached as far as is known."""
    if not isinstance(result, Refused) or result.code not in _WRONG_LEADER:
        return None
    leadership = state.leadership(partition)
    leader = None if leadership is None else state.brokers.get(leadership.leader_id)
    if leadership is None or leader is None or leader.is_fenced:
        return None
    return CurrentLeader(leader.endpoint, leadership.leader_epoch)


async def gather_answers(
    answers: Sequence[asyncio.Future[T]], *, timeout_ms: int, otherwise: str, share: LoopShare
) -> list[T | Refused]:
    """What they say within `timeout_ms`; of those that are late REQUEST_TIMED_OUT with `otherwise`."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + timeout_ms / 1000
    results: list[T | Refused] = []
    for answer in answers:
        if share.is_used_up:
            await share.wait()
        if not answer.done() and (left_s := due_s - loop.time()) > 0:
            await asyncio.wait([answer], timeout=left_s)
            share.renew()
        results.append(answer.result() if answer.done() else Refused(ErrorCode.REQUEST_TIMED_OUT, otherwise))
    return results
