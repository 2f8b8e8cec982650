"""A session of fetches tells, request by request, all that a fetch of all its partitions would (KIP-227)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from bus.errors import Refused
from bus.model import TopicPartition
from bus.partition_log.reads import NotYet
from bus.runtime.partitions.fetch_session import FetchPosition, FetchSession, FetchSessions
from bus.runtime.partitions.fetches import FetchResult, FetchWish, Stopping, fetch
from tests.support.model_partition import ELSEWHERE, ModelPartition
from tests.support.proofs import proved, unproved
from tests.support.virtual_time import run_virtually

PARTITIONS = 4


class World:
    """A leader, and a reader that knows of each partition what the session has told it."""

    def __init__(self) -> None:
        self.names = [TopicPartition("t", number) for number in range(PARTITIONS)]
        self.logs = {name: ModelPartition() for name in self.names}
        self.all_logs = list(self.logs.values())
        self.sessions = FetchSessions()
        self.session = FetchSession(self.sessions)
        self.asked: dict[TopicPartition, FetchPosition] = {}  # as the session knows it
        self.wanted = {name: self.position(name, 0) for name in self.names}
        self.known: dict[TopicPartition, tuple[int, int, int]] = {}
        self.prove: Callable[[], Awaitable[Refused | None]] = proved

    def position(self, name: TopicPartition, offset: int, seen_version: int | None = None) -> FetchPosition:
        return FetchPosition(name, "", offset, 1_000, None, seen_version)

    def find(self, name: TopicPartition, topic_id: str) -> ModelPartition | Refused:
        log = self.logs[name]
        return log if log.is_led else ELSEWHERE

    def move(self, name: TopicPartition, *, is_led: bool) -> None:
        """It is led elsewhere from now on, or here again, as another partition of the same log."""
        before = self.logs[name]
        self.logs[name] = ModelPartition(before.log_start, before.end, before.version + 1, is_led)
        self.all_logs.append(self.logs[name])
        before.is_led = False
        before.wake()

    def go_on(self) -> None:
        """The reader takes what it was given, and asks for what comes next."""
        for name in self.wanted.keys() & self.known.keys():
            high_watermark, _, version = self.known[name]
            self.wanted[name] = self.position(name, high_watermark, version)

    async def ask(self) -> None:
        """One request of the session, and one that stands alone: both compared with the logs themselves."""
        for name in self.asked.keys() - self.wanted.keys():
            self.session.forget(name)
        for name, position in self.wanted.items():
            if self.asked.get(name) != position:
                self.session.put(position)
        self.asked = dict(self.wanted)
        alone = await self._fetch(FetchWish(list(self.asked.values()), 0, 1, lambda: 1_000_000))
        in_session = await self._fetch(FetchWish([], 0, 1, lambda: 1_000_000, session=self.session))
        assert alone.keys() == set(self.asked.values())
        assert in_session.keys() <= alone.keys()
        refused = await self.prove()
        for position in self.asked.values():
            expected = refused or self._naively(position)
            assert _shown(alone[position]) == _shown(expected)
            self._compare(position, expected, in_session.get(position))

    async def _fetch(self, wish: FetchWish) -> dict[FetchPosition, FetchResult]:
        return dict(await fetch(wish, self.find, self.prove, Stopping()))

    def _naively(self, position: FetchPosition) -> FetchResult:
        log = self.logs[position.partition]
        decided = log.decide_fetch(position.offset, None, position.seen_version)
        if isinstance(decided, NotYet):
            return decided.refused
        return decided if isinstance(decided, Refused) else log.result(decided)

    def _compare(self, position: FetchPosition, expected: FetchResult, found: FetchResult | None) -> None:
        """A partition that is missing in an answer of the session was reported before."""
        name = position.partition
        if isinstance(expected, Refused):
            assert found == expected, f"{name} was to be refused"
            return
        assert not isinstance(found, Refused), f"{name} was refused"
        if found is not None:
            self.known[name] = found.high_watermark, found.log_start, found.version
        told = self.known.get(name)
        assert told == (expected.high_watermark, expected.log_start, expected.version), f"{name} is not told"
        if found is None:
            assert not expected.batches, f"{name} has records that are not in the answer"
        else:
            assert _shown(found) == _shown(expected)


def _shown(result: FetchResult) -> object:
    return result if isinstance(result, Refused) else (*result[1:], [batch.base_offset for batch in result.batches])


STEPS = st.tuples(
    st.sampled_from([*["commit"] * 4, "trim", "fence", "leave", *["lead"] * 2, "seek", "pause", "read", "none"]),
    st.integers(0, PARTITIONS - 1),
    st.integers(1, 6),
    st.sampled_from(["go on", "go on", "ask again", "unproved", "nothing"]),  # what the reader does then
)


@given(st.lists(STEPS, max_size=40))
def test_session_tells_what_a_fetch_of_all_its_partitions_would(plan: list[tuple[str, int, int, str]]) -> None:
    async def run() -> None:
        world = World()
        for step, number, value, reader in plan:
            _take(world, step, world.names[number], value)
            world.prove = unproved if reader == "unproved" else proved
            if reader != "nothing":
                await world.ask()
            if reader == "go on":
                world.go_on()
        world.prove = proved
        await world.ask()
        world.session.close()
        assert world.sessions.positions == 0
        assert not any(log.readers for log in world.all_logs)

    run_virtually(run())


def _take(world: World, step: str, name: TopicPartition, value: int) -> None:
    log = world.logs[name]
    match step:
        case "commit" if log.is_led:
            log.change(records=value)
        case "trim" if log.is_led:
            log.change(log_start=value)
        case "fence" if log.is_led:
            log.change()
        case "leave" | "lead":
            world.move(name, is_led=step == "lead")
        case "seek":
            world.wanted[name] = world.position(name, value)
        case "pause":
            world.wanted.pop(name, None)
            world.known.pop(name, None)
        case "read":
            world.wanted.setdefault(name, world.position(name, log.log_start))
