"""Whom a broker asks for the versions that it follows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    apply_all,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.runtime.replicas.followed_tables import CommittedVersion, VersionsAnswer, VersionsRequest
from bus.runtime.replicas.leader_watch import LeaderWatch
from bus.runtime.tasks import TaskScope
from tests.support.virtual_time import run_virtually

_NOTHING_TO_REPORT = SimpleNamespace(count=1, is_reading=False, take_report=lambda leader_id, is_whole: [])


class _Leaders:
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def committed_versions(self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float) -> Any:
        self.asked.append(leader.broker_id)
        await asyncio.Event().wait()


def cluster_of(*broker_ids: int) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, [BrokerRegistered(broker_id, "h", 1 + broker_id) for broker_id in broker_ids])


def test_a_broker_that_stops_watches_no_leader_of_a_state_that_comes_late() -> None:
    """A change of the metadata may be under way when the broker stops."""

    async def scenario() -> None:
        leaders, tasks = _Leaders(), TaskScope("test")
        watch = LeaderWatch(0, leaders, cast(Any, _NOTHING_TO_REPORT), tasks)
        watch.follow(cluster_of(0, 1))
        await asyncio.sleep(0)
        assert leaders.asked == [1]
        watch.stop()
        watch.follow(cluster_of(0, 1, 2))
        await asyncio.wait_for(tasks.join(), 5.0)
        assert leaders.asked == [1]

    asyncio.run(scenario())


def test_all_that_was_applied_is_reported_again_under_a_new_broker_epoch() -> None:
    """A leader counts nothing that an earlier registration has reported."""

    class _Answering:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        async def committed_versions(
            self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
        ) -> VersionsAnswer:
            self.epochs.append(request.report.broker_epoch)
            return VersionsAnswer("life", 1, ())

    whole: list[bool] = []

    def take_report(leader_id: int, *, is_whole: bool) -> list[CommittedVersion]:
        whole.append(is_whole)
        return []

    async def wait_until_read(timeout_s: float) -> None:
        return None

    def started(broker_epoch: int) -> list[ClusterRecord]:
        return [
            BrokerStarted(0, "h", 1, None, f"life-{broker_epoch}", broker_epoch, 0, 1),
            BrokerUnfenced(0, broker_epoch),
        ]

    async def scenario() -> None:
        leaders, tasks = _Answering(), TaskScope("test")
        tables = SimpleNamespace(
            count=1,
            is_reading=False,
            take_report=take_report,
            note=lambda versions, is_awaited: None,
            wait_until_read=wait_until_read,
        )
        watch = LeaderWatch(0, leaders, cast(Any, tables), tasks)
        cluster = apply_all(cluster_of(0, 1), [FeatureLevel(BUS_VERSION, 1), *started(10)])
        watch.follow(cluster)
        await asyncio.sleep(0.1)
        assert whole == [True] + [False] * (len(whole) - 1)
        assert len(whole) > 1
        count = len(whole)
        watch.follow(apply_all(cluster, started(20)))
        await asyncio.sleep(0.1)
        watch.stop()
        await tasks.join()
        first = leaders.epochs.index(20)
        assert first >= count
        assert whole[first:] == [True] + [False] * (len(whole) - first - 1)

    run_virtually(scenario())


def test_whole_report_goes_to_a_leader_that_may_not_know_it_and_any_failure_is_followed_by_another_question() -> None:
    asked: list[tuple[str, int, bool]] = []
    noted: list[int] = []
    answers: list[Any] = [
        VersionsAnswer("life", 3, []),
        VersionsAnswer("life", 5, []),
        VersionsAnswer("next-life", 1, []),
        RuntimeError("unforeseen"),
        VersionsAnswer("next-life", 2, []),
        Refused(ErrorCode.NETWORK_EXCEPTION, "nothing listens"),
        VersionsAnswer("next-life", 2, []),
    ]
    is_whole = False

    class Leaders:
        async def committed_versions(
            self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
        ) -> Any:
            asked.append((request.incarnation, request.after, is_whole))
            if not answers:
                await asyncio.Event().wait()
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    def take_report(leader_id: int, *, is_whole: bool) -> list[CommittedVersion]:
        set_whole(is_whole)
        return []

    def set_whole(value: bool) -> None:
        nonlocal is_whole
        is_whole = value

    async def wait_until_read(timeout_s: float) -> None: ...

    tables: Any = SimpleNamespace(
        count=1,
        is_reading=False,
        take_report=take_report,
        note=lambda versions, is_awaited: noted.append(len(versions)),
        wait_until_read=wait_until_read,
    )

    async def scenario() -> None:
        tasks = TaskScope("test")
        watch = LeaderWatch(0, Leaders(), tables, tasks, lambda leader_id: None)
        watch.follow(cluster_of(0, 1))
        await asyncio.sleep(5)
        watch.stop()
        await tasks.join()

    run_virtually(scenario())
    assert asked == [
        ("", 0, True),
        ("life", 3, False),
        ("life", 5, False),
        ("next-life", 1, True),
        ("next-life", 1, True),
        ("next-life", 2, False),
        ("next-life", 2, True),
        ("next-life", 2, False),
    ]
