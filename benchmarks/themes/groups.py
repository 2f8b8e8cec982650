"""Consumer groups: how fast they rebalance, what their heartbeats cost, how fast offsets are committed and replayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.group_crowd import Committer, Crowd, Member
from bus import Admin

_HEARTBEAT_S = 3.0
_GROUPS = 500  # that commit at once
_KEYS = 1_000
_PIPELINE = 200  # commits under way of the one that commits a million

# One loop for all: gRPC's asyncio keeps telling the loop that it began with, and a closed one would answer with errors.
_LOOP = asyncio.new_event_loop()
_T = TypeVar("_T")


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return _LOOP.run_until_complete(coroutine)


def measure_groups(bench: Bench) -> list[Figure]:
    rebalances: dict[int, dict[str, list[float]]] = {size: {"joins": [], "leaves": []} for size in (100, 1_000)}
    heartbeats: list[float] = []
    latencies: list[np.ndarray] = []
    rates: list[float] = []
    rates_cpu: list[float] = []
    sizes = bench.sizes
    for number in range(sizes.rounds):
        with bench.broker("group.initial.rebalance.delay.ms=0") as broker:
            loads.create_topic(broker.address, "t", 1)
            for size, found in rebalances.items():
                join_s, leave_s = _run(_rebalance(broker.address, f"rebalance-{size}", size))
                found["joins"].append(join_s)
                found["leaves"].append(leave_s)
                bench.report(
                    f"{size} members, round {number + 1}: one joins {join_s:.2f} s, one leaves {leave_s:.2f} s"
                )
            heartbeats.append(_run(_heartbeats(broker, sizes.group_members, sizes.heartbeat_seconds)))
            bench.report(f"{sizes.group_members:,} members, round {number + 1}: {heartbeats[-1]:.2f} of a core")
        with bench.broker("group.initial.rebalance.delay.ms=0") as broker:  # those members are still expiring there
            loads.create_topic(broker.address, "t", 1)
            latencies.append(_run(_commit_latency(broker.address, sizes.latency_records)))
            cpu = broker.cpu_seconds()
            rates.append(_run(_commit_rate(broker.address, sizes.commit_seconds)))
            rates_cpu.append((broker.cpu_seconds() - cpu) / (rates[-1] * sizes.commit_seconds) * 1e6)
            p50 = np.percentile(latencies[-1], 50) * 1000
            bench.report(f"offset commits, round {number + 1}: p50 {p50:.2f} ms; {_GROUPS} groups {rates[-1]:,.0f}/s")
    figures = []
    for size, found in rebalances.items():
        target = 1.0 if size == 100 else 5.0
        for what, runs in found.items():
            title = f"{size:,} members: until all have their assignment after one {what}"
            figures.append(Figure(f"rebalance-{size}-{what}", title, "s", runs, target))
    return [
        *figures,
        Figure(
            "heartbeats",
            f"{sizes.group_members:,} members, a heartbeat each {_HEARTBEAT_S:g} s: processor of the broker",
            "cores",
            heartbeats,
            0.5,
        ),
        Figure("commit-p50", "an offset commit, p50", "ms", _percentiles_ms(latencies, 50), 3.0),
        Figure("commit-p99", "... p99", "ms", _percentiles_ms(latencies, 99)),
        Figure("commit-rate", f"offset commits of {_GROUPS} groups", "commits/s", rates, 5_000, is_more_better=True),
        Figure("commit-cpu", "... processor time of the broker", "µs a commit", rates_cpu),
    ]


def _percentiles_ms(runs: list[np.ndarray], percent: int) -> list[float]:
    return [float(np.percentile(seconds, percent)) * 1000 for seconds in runs]


async def _rebalance(address: str, group_id: str, size: int) -> tuple[float, float]:
    """Seconds from a change until every member has its assignment: after one more member, after one less."""
    async with Crowd(address) as crowd:
        members = [Member(crowd, group_id, number) for number in range(size)]
        living = [asyncio.ensure_future(member.live(_HEARTBEAT_S)) for member in members[:-1]]
        await _settle(members[:-1])
        started = time.perf_counter()
        living.append(asyncio.ensure_future(members[-1].live(_HEARTBEAT_S)))
        joined = await _settle(members, after=started) - started
        living[0].cancel()
        started = time.perf_counter()
        await members[0].leave()
        left = await _settle(members[1:], after=started) - started
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)
        for member in members:
            member.end()
        return joined, left


async def _settle(members: list[Member], after: float = 0.0) -> float:
    """When the last of them had its assignment of the one generation that all are in."""
    deadline = time.perf_counter() + 120
    while time.perf_counter() < deadline:
        if len({member.generation for member in members}) == 1:
            at = [member.stable_at for member in members]
            if min(at) > after:
                await asyncio.sleep(1.0)
                if at == [member.stable_at for member in members]:
                    return max(at)
        await asyncio.sleep(0.02)
    raise RuntimeError("the group does not settle")


async def _rest(members: list[Member]) -> None:
    """Until all have their assignment and nothing has changed for two heartbeats."""
    deadline = time.perf_counter() + 300
    before: list[float] = []
    while time.perf_counter() < deadline:
        at = [member.stable_at for member in members]
        if at == before and min(at) > 0:
            return
        before = at
        await asyncio.sleep(_HEARTBEAT_S * 2)
    raise RuntimeError("the groups do not come to rest")


async def _heartbeats(broker: BrokerProcess, count: int, seconds: float) -> float:
    """Cores that the broker uses for `count` members in groups of ten."""
    async with Crowd(broker.address) as crowd:
        members = [Member(crowd, f"beat-{number // 10}", number) for number in range(count)]
        living = []
        for number, member in enumerate(members):
            living.append(asyncio.ensure_future(member.live(_HEARTBEAT_S)))
            if number % 100 == 0:  # spread over the time of one heartbeat
                await asyncio.sleep(_HEARTBEAT_S * 100 / count)
        await _rest(members)
        cpu, started = broker.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        used = (broker.cpu_seconds() - cpu) / (time.perf_counter() - started)
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)
        for member in members:
            member.end()
        return used


async def _commit_latency(address: str, count: int) -> np.ndarray:
    async with Crowd(address) as crowd:
        committer = Committer(crowd, 0, "latency")
        seconds = np.empty(count)
        for number in range(count):
            started = time.perf_counter()
            await committer.commit("t", 0, number)
            seconds[number] = time.perf_counter() - started
        committer.end()
        return seconds


async def _commit_rate(address: str, seconds: float) -> float:
    """Commits a second of many groups, each with one commit under way."""
    async with Crowd(address) as crowd:
        committers = [Committer(crowd, number, f"rate-{number}") for number in range(_GROUPS)]
        end = time.perf_counter() + seconds
        count = 0

        async def commit_on(committer: Committer) -> None:
            nonlocal count
            offset = 0
            while time.perf_counter() < end:
                await committer.commit("t", 0, offset)
                offset += 1
                count += 1

        await asyncio.gather(*(commit_on(committer) for committer in committers))
        for committer in committers:
            committer.end()
        return count / seconds


def measure_offsets(bench: Bench) -> list[Figure]:
    """`__consumer_offsets` after very many commits to a few keys: its size, and how long a coordinator reads it."""
    count = bench.sizes.offset_commits
    with bench.broker("log.segment.delete.delay.ms=1000") as broker:
        loads.create_topic(broker.address, "t", _KEYS)
        started = time.perf_counter()
        _run(_commit_many(broker.address, count))
        bench.report(f"{count:,} commits to {_KEYS:,} keys in {time.perf_counter() - started:.0f} s")
        time.sleep(bench.sizes.idle_seconds)
        size = _folder_bytes(broker.root / "topics" / "__consumer_offsets") / 1e6
        broker.stop()
        broker.start()
        started = time.perf_counter()
        with Admin(broker.address) as admin:
            found = admin.list_group_offsets("many")
        replayed = time.perf_counter() - started
        assert len(found) == _KEYS, f"expected {_KEYS} offsets, found {len(found)}"
    return [
        Figure("offsets-size", f"__consumer_offsets after {count:,} commits to {_KEYS:,} keys", "MB", [size], 10.0),
        Figure("offsets-replay", "... until a restarted coordinator answers", "s", [replayed], 1.0),
    ]


async def _commit_many(address: str, count: int) -> None:
    async with Crowd(address) as crowd:
        committer = Committer(crowd, 0, "many")
        under_way: list[asyncio.Future[None]] = []
        for number in range(count):
            under_way.append(committer.commit("t", number % _KEYS, number))
            if len(under_way) == _PIPELINE:
                await asyncio.gather(*under_way)
                under_way = []
        await asyncio.gather(*under_way)
        committer.end()


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
