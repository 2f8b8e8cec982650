from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.maintenance import MaintenanceApi
from bus.broker_api.requests import BrokerStopping
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.descriptions import DEFAULT_NAME, DeletedRecords, MaintainedLog, QuotaEntity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.maintenance import MaintenanceHandler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.partitions.maintenance import FilesSwapped, MaintenanceAction
from bus.runtime.tasks import LoopShares
from bus.security.quotas import REQUEST_RATE
from tests.support.api_bench import ApiBench, open_access
from tests.support.cancelled_calls import QuietContext

DONE = MaintainedLog(0, 9, 4, 1, 400, 300, 301, 7, 2, 3, 99)
REFUSED = Refused(ErrorCode.POLICY_VIOLATION, "as the test wants it")


class FakePartition:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[asyncio.Future[Any]] = []

    def _ask(self, *what: Any) -> asyncio.Future[Any]:
        self.asked.append(what)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    delete_records = maintain = swap_files = _ask


class FakeCluster:
    """`orders` has partitions, and so has `__internal`."""

    def __init__(self, count: int) -> None:
        self.partitions = [FakePartition() for _ in range(count)]
        topic = SimpleNamespace(partitions=range(count))
        self.state = SimpleNamespace(topics={"orders": topic, "__internal": topic})
        self.host = self

    def find(self, name: TopicPartition) -> Any:
        if name.topic in self.state.topics and 0 <= name.partition < len(self.partitions):
            return self.partitions[name.partition]
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no {name}")


class Bench:
    """A handler that works on two partitions at a time, and what it has answered so far."""

    def __init__(self, partitions: int, request_timeout_ms: int = 30_000) -> None:
        self.cluster = FakeCluster(partitions)
        self.stopping = Stopping()
        shares = LoopShares()
        api = MaintenanceApi(
            self.cluster,  # type: ignore[arg-type]  # as far as the API knows it
            self.stopping,
            shares,
            None,  # type: ignore[arg-type]  # nothing blocks
            jobs_max=2,
            request_timeout_ms=request_timeout_ms,
        )
        self.handler = MaintenanceHandler(api, shares)
        self.answers: list[pb.MaintainLogResponse] = []

    async def maintain(self, *numbers: int, topic: str = "orders") -> None:
        request = pb.MaintainLogRequest(action=pb.MAINTENANCE_ACTION_CLEAN, topic=topic, partitions=numbers)
        async for answer in self.handler.maintain(open_access("MaintainLog"), request):
            self.answers.append(answer)

    def begun(self) -> list[int]:
        return [number for number, one in enumerate(self.cluster.partitions) if one.asked]

    def finish(self, number: int, refusal: Refused | None = None) -> None:
        self.cluster.partitions[number].answers[0].set_result(refusal or replace(DONE, partition=number))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def settle() -> None:
    """Wait until nothing can go on by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


# ------------------------------------------------------------------ maintenance by hand


def test_partitions_are_worked_on_two_at_a_time_and_answered_as_they_finish() -> None:
    async def test() -> None:
        bench = Bench(3)
        call = asyncio.ensure_future(bench.maintain())
        await settle()
        assert bench.begun() == [0, 1]
        bench.finish(1)
        await settle()
        assert [answer.partition for answer in bench.answers] == [1]
        assert bench.begun() == [0, 1, 2]
        bench.finish(0, REFUSED)
        bench.finish(2)
        await call
        assert sorted((answer.partition, answer.error_code) for answer in bench.answers) == [(0, 44), (1, 0), (2, 0)]
        assert [one.asked for one in bench.cluster.partitions] == [[(MaintenanceAction.CLEAN,)]] * 3
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"

    run(test)


def test_result_is_told_field_by_field() -> None:
    async def test() -> None:
        bench = Bench(1)
        call = asyncio.ensure_future(bench.maintain(0))
        await settle()
        bench.finish(0)
        await call
        assert bench.answers == [
            pb.MaintainLogResponse(
                partition=0,
                version=9,
                files_before=4,
                files_after=1,
                bytes_before=400,
                bytes_after=300,
                rewritten_bytes=301,
                log_start=7,
                dropped_versions=2,
                deleted_files=3,
                deleted_bytes=99,
            )
        ]

    run(test)


def test_partition_named_twice_is_maintained_once_and_an_unknown_one_is_answered() -> None:
    async def test() -> None:
        bench = Bench(2)
        call = asyncio.ensure_future(bench.maintain(1, 1, 5))
        await settle()
        bench.finish(1)
        await call
        codes = {answer.partition: answer.error_code for answer in bench.answers}
        assert codes == {1: 0, 5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        await bench.maintain(topic="nowhere")
        assert (bench.answers[-1].partition, bench.answers[-1].error_code) == (-1, 3)

    run(test)


def test_call_that_is_given_up_begins_nothing_more() -> None:
    async def test() -> None:
        bench = Bench(4)
        call = asyncio.ensure_future(bench.maintain())
        await settle()
        call.cancel()
        await settle()
        bench.finish(0)
        await settle()
        assert bench.begun() == [0, 1]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)


def test_call_that_waits_has_no_task_beside_its_own() -> None:
    """One would belong to no scope: the end of the broker would not wait for it."""

    async def test() -> None:
        bench = Bench(3)
        call = asyncio.ensure_future(bench.maintain())
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task(), call}
        bench.finish(1)
        await settle()
        assert bench.begun() == [0, 1, 2]
        assert asyncio.all_tasks() == {asyncio.current_task(), call}
        call.cancel()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not bench.stopping._waiting

    run(test)


@pytest.mark.parametrize("is_begun", [True, False])
def test_call_that_is_closed_between_two_answers_leaves_nothing_behind(is_begun: bool) -> None:
    async def test() -> None:
        bench = Bench(3)
        request = pb.MaintainLogRequest(action=pb.MAINTENANCE_ACTION_CLEAN, topic="orders")
        answers = bench.handler.maintain(open_access("MaintainLog"), request)
        if is_begun:
            first = asyncio.ensure_future(anext(answers))  # type: ignore[arg-type]
            await settle()
            bench.finish(0)
            await first
        await answers.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not bench.stopping._waiting

    run(test)


def test_stopping_broker_waits_for_no_maintenance() -> None:
    async def test() -> None:
        bench = Bench(3)
        call = asyncio.ensure_future(bench.maintain())
        await settle()
        bench.stopping.begin()
        with pytest.raises(BrokerStopping):
            await call
        assert bench.begun() == [0, 1]

    run(test)


def test_unknown_action_and_kind_are_bad_requests() -> None:
    async def test() -> None:
        bench = Bench(1)
        action: Any = 9
        maintained = bench.handler.maintain(
            open_access("MaintainLog"), pb.MaintainLogRequest(action=action, topic="orders")
        )
        with pytest.raises(ValueError, match="from 0 to 3, found 9"):
            await anext(maintained)
        with pytest.raises(ValueError, match="from 0 to 1, found 9"):
            await bench.handler.swap_files(open_access("SwapFiles"), pb.SwapFilesRequest(kind=action, topic="orders"))

    run(test)


# ------------------------------------------------------------------ deleting records


def test_each_partition_has_its_own_answer() -> None:
    async def test() -> None:
        bench = Bench(2)
        asked = [("orders", 0, 5), ("orders", 1, -1), ("orders", 9, 1), ("__internal", 0, 1)]
        request = pb.DeleteRecordsRequest(
            partitions=[
                pb.DeleteRecordsPartition(topic=topic, partition=number, offset=offset)
                for topic, number, offset in asked
            ]
        )
        call = asyncio.ensure_future(bench.handler.delete_records(open_access("DeleteRecords"), request))
        await settle()
        first, second = bench.cluster.partitions
        assert (first.asked, second.asked) == ([(5,)], [(-1,)])
        first.answers[0].set_result(DeletedRecords(5, 3))
        second.answers[0].set_result(REFUSED)
        answers = (await call).partitions
        assert [(one.topic, one.partition) for one in answers] == [(topic, number) for topic, number, _ in asked]
        assert [one.error_code for one in answers] == [
            0,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert [(one.low_watermark, one.version) for one in answers] == [(5, 3), (-1, -1), (-1, -1), (-1, -1)]

    run(test)


def test_busy_partition_is_answered_in_time_and_holds_up_no_other() -> None:
    async def test() -> None:
        bench = Bench(2, request_timeout_ms=0)
        request = pb.DeleteRecordsRequest(
            partitions=[pb.DeleteRecordsPartition(topic="orders", partition=number, offset=1) for number in (0, 7)]
        )
        response = await asyncio.wait_for(
            bench.handler.delete_records(open_access("DeleteRecords"), request), timeout=1
        )
        codes = [one.error_code for one in response.partitions]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not bench.cluster.partitions[0].answers[0].cancelled(), "it is done all the same"

    run(test)


# ------------------------------------------------------------------ files of a job


def test_swap_is_handed_to_the_partition() -> None:
    async def test() -> None:
        bench = Bench(1)
        request = pb.SwapFilesRequest(topic="orders", kind=pb.SWAP_KIND_LAST_OF_KEYS, removes=["a", "b"], adds=["c"])
        call = asyncio.ensure_future(bench.handler.swap_files(open_access("SwapFiles"), request))
        await settle()
        (partition,) = bench.cluster.partitions
        assert partition.asked == [(["a", "b"], ["c"], SwapKind.LAST_OF_KEYS)]
        partition.answers[0].set_result(FilesSwapped(12))
        assert await call == pb.SwapFilesResponse(version=12)

    run(test)


@pytest.mark.parametrize(("super_users", "expected"), [("", 1), ("User:ANONYMOUS", 3)])
def test_only_who_may_maintain_a_log_is_charged_for_its_partitions_and_so_learns_how_many_there_are(
    super_users: str, expected: int
) -> None:
    quotas = {QuotaEntity(DEFAULT_NAME, None): {REQUEST_RATE: 100.0}}
    topics: Any = {"secret": SimpleNamespace(partitions=range(3))}
    charged: list[float] = []

    async def play() -> None:
        bench = ApiBench(super_users=super_users, state=replace(EMPTY_CLUSTER, quotas=quotas, topics=topics))
        bench.cluster.host.find = lambda _: REFUSED
        charge = bench.api.quotas.charge
        bench.api.quotas.charge = lambda allowance, amount: charged.append(amount) or charge(allowance, amount)  # type: ignore[method-assign, func-returns-value]
        async for _ in bench.calls_of.MaintainLog(pb.MaintainLogRequest(topic="secret"), QuietContext()):
            pass

    asyncio.run(play())
    assert sum(charged) == expected
