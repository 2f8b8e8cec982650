"""When callers are held by what they owe, under virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.client_quotas import CallerPace, ClientQuotas, _check_once
from bus.broker_api.requests import BrokerStopping, Caller, OverQuota
from bus.descriptions import QuotaEntity
from bus.errors import ErrorCode, Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint
from bus.runtime.partitions.fetches import Stopping
from bus.security.quotas import PRODUCER_BYTE_RATE, REQUEST_RATE
from tests.support.api_bench import FOR_ALL, ApiBench, answering
from tests.support.virtual_time import run_virtually

ALICE = QuotaEntity("alice")


class Bench:
    def __init__(self, **limits: float) -> None:
        config = SimpleNamespace(quota_window_num=11, quota_window_size_seconds=1)
        endpoint, state = BrokerEndpoint(1, "h", 1), SimpleNamespace(quotas={ALICE: limits})
        self.cluster: Any = SimpleNamespace(config=config, endpoint=endpoint, state=state)
        self.stopping = Stopping()
        self.quotas = ClientQuotas(self.cluster, self.stopping)

    def pace(self, connection: int = 0, *, user: str = "alice") -> CallerPace:
        caller = Caller(connection, "/127.0.0.1", "", f"User:{user}")
        return CallerPace(self.quotas, caller, PRODUCER_BYTE_RATE, REQUEST_RATE)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_debt_of_one_stream_holds_all_of_the_same_user_and_no_other() -> None:
    async def play() -> None:
        bench = Bench(producer_byte_rate=100)
        began_s = now_s()
        assert bench.pace(1).note_produced(3_000) == 20_000
        (used,) = bench.quotas.usage()
        assert (used.entity, used.throttle_time_ms) == (ALICE, 20_000)
        await bench.pace(2, user="bob").wait()
        assert now_s() == began_s
        await bench.pace(3).wait()
        assert now_s() == pytest.approx(began_s + 20)

    run_virtually(play())


def test_of_those_who_wait_for_one_debt_each_waits_for_what_the_others_use() -> None:
    async def play() -> None:
        bench, done_s = Bench(producer_byte_rate=100), []
        began_s = now_s()
        bench.pace().note_produced(3_000)

        async def produce(connection: int) -> None:
            pace = bench.pace(connection)
            await pace.wait()
            pace.note_produced(3_000)
            done_s.append(round(now_s() - began_s))

        await asyncio.gather(*(produce(one) for one in range(3)))
        assert done_s == [20, 40, 60]

    run_virtually(play())


def test_of_many_that_wait_for_one_debt_few_look_at_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a caller with thousands of calls keeps the event loop busy for as long as its quota holds it."""

    async def play() -> None:
        bench, looks, done = Bench(request_rate=1), 0, []
        debt_s = bench.quotas.debt_s

        def count(*arguments: Any) -> float:
            nonlocal looks
            looks += 1
            return debt_s(*arguments)

        bench.pace().note_request(20)
        monkeypatch.setattr(bench.quotas, "debt_s", count)

        async def call(number: int, time_left_s: float | None) -> None:
            pace = bench.pace(number % 3)
            await pace.wait_or_refuse(time_left_s)
            pace.note_request()
            done.append(number)

        calls = [asyncio.ensure_future(call(number, (None, 3_600)[number % 2])) for number in range(500)]
        await asyncio.sleep(0)
        began, looks = looks, 0
        await asyncio.sleep(60)
        assert len(done) > 40
        assert looks < 10 * len(done)
        assert began < 10 * len(calls)
        late = bench.pace(0)  # as many others are before it
        with pytest.raises(OverQuota):
            await late.wait_or_refuse(10)
        for one in calls:
            one.cancel()
        await asyncio.wait(calls)
        await bench.pace().wait()  # nothing is left that holds the turn

    run_virtually(play())


def test_call_is_refused_at_once_if_half_of_its_time_does_not_suffice() -> None:
    async def play() -> None:
        bench = Bench(producer_byte_rate=100)
        began_s = now_s()
        bench.pace().note_produced(3_000)
        with pytest.raises(OverQuota, match=r"producer_byte_rate.*retry in 20\.0 s"):
            await bench.pace().wait_or_refuse(39)
        assert now_s() == began_s
        await bench.pace().wait_or_refuse(41)
        await bench.pace().wait_or_refuse(None)
        assert now_s() == pytest.approx(began_s + 20)

    run_virtually(play())


def test_who_waits_heeds_a_quota_that_has_changed() -> None:
    async def play() -> None:
        bench = Bench(producer_byte_rate=1)
        began_s = now_s()
        bench.pace().note_produced(100_000)
        waiting = asyncio.ensure_future(bench.pace().wait())
        await asyncio.sleep(1)
        bench.cluster.state = SimpleNamespace(quotas={})
        await waiting
        assert now_s() == pytest.approx(began_s + 5)

    run_virtually(play())


def test_calls_that_wait_end_when_the_broker_stops() -> None:
    async def play() -> None:
        bench = Bench(producer_byte_rate=1)
        bench.pace().note_produced(100_000)
        waiting = [asyncio.ensure_future(bench.pace(one).wait_or_refuse(None)) for one in range(3)]
        await asyncio.sleep(1)
        bench.stopping.begin()
        for one in waiting:
            with pytest.raises(BrokerStopping):
                await one

    run_virtually(play())


def test_that_a_name_comes_again_is_found_without_a_look_at_all_names_before_each() -> None:
    class Names(list[str]):
        def __getitem__(self, _: Any) -> Any:
            raise AssertionError("expected a look at each name, found one at those before it")

    assert _check_once("quota", Names(["a", "b", "c"])) is None
    again = _check_once("quota", Names(["a", "b", "c", "b"]))
    assert again == Refused(ErrorCode.INVALID_REQUEST, "expected each quota once, found b again")


def test_an_entity_that_comes_again_is_found_without_a_look_at_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    is_same = QuotaEntity.__eq__

    def look(one: QuotaEntity, other: object) -> bool:
        looks.append(one)
        return is_same(one, other)

    monkeypatch.setattr(QuotaEntity, "__eq__", look)
    bench, asked = ApiBench(config=FOR_ALL), list[Any]()
    bench.cluster.controller.alter_quotas = answering(lambda commands: [{}] * len(commands), asked)
    names = [*map(str, range(100)), "7"]
    entries = [pb.QuotaAlteration(entity=[pb.QuotaEntityPart(type="user", name=name)]) for name in names]
    answer = bench.answer("AlterClientQuotas", pb.AlterClientQuotasRequest(entries=entries))
    assert [one.error_code for one in answer.entries] == [0] * 100 + [ErrorCode.INVALID_REQUEST]
    assert (len(asked[0]), len(looks) < 100) == (100, True)
