"""Parts of all simulated worlds: virtual time, chance by one seed, tasks whose failure ends the run, a trace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

from tests.support.virtual_time import VirtualTimeLoop, run_virtually

_TRACE_LINES = 250

WorldT = TypeVar("WorldT", bound="SimulatedWorld")


class SimulatedWorld:
    """Made within the loop of `simulate`. One seed decides everything that happens."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_healed = False
        self.is_spared = False  # nothing fails for a while
        self._trace: deque[tuple[float, str, str, Any]] = deque(maxlen=_TRACE_LINES)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------ time and chance

    @property
    def now(self) -> float:
        return self._loop.time()

    def at(self, delay: float, event: Callable[[], None]) -> None:
        self._loop.call_later(delay, self.guarded(event))

    def at_time(self, time: float, event: Callable[[], None]) -> None:
        self._loop.call_at(time, self.guarded(event))

    def chance(self, one_in: int) -> bool:
        return one_in > 0 and not (self.is_healed or self.is_spared) and self.random.randrange(one_in) == 0

    def delay(self) -> float:
        return self.random.choice((0.0, 0.001, 0.002, 0.01, self.random.uniform(0, 0.1)))

    def down_s(self) -> float:
        return self.random.choice((0.1, self.random.uniform(0, 1.0), self.random.uniform(0, 10.0)))

    # ------------------------------------------------------------ failing

    def guarded(self, event: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if not self._failure.done():
                try:
                    event(*args)
                except Exception as error:
                    self.fail(error)

        return run

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    # ------------------------------------------------------------ what is seen

    def note(self, who: str, what: str, about: Any = "") -> None:
        self._trace.append((self.now, who, what, about))

    def trace(self) -> str:
        return "\n".join(f"{now:9.3f} {who:12} {what} {self.brief(about)}" for now, who, what, about in self._trace)

    def brief(self, about: Any) -> str:
        """Describe a value for the trace."""
        return str(about)

    # ------------------------------------------------------------ the run

    def end(self) -> None:
        """The run is over: nothing may keep tasks from ending."""

    async def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Play until `scenario` is over or something fails."""
        playing = self._loop.create_task(scenario)
        await asyncio.wait([playing, self._failure], return_when=asyncio.FIRST_COMPLETED)
        failure = self._failure.exception() if self._failure.done() else None
        if failure is None and playing.done():
            failure = playing.exception()
        self._failure.cancel()
        self.end()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if failure is not None:
            raise AssertionError(f"{failure!r}\n{self.trace()}") from failure


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """A world makes many objects and lives for seconds: to look for garbage among all that is loaded costs too much."""
    before = gc.get_threshold()
    if not gc.get_freeze_count():
        gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def simulate(
    seed: int, new_world: Callable[[int], WorldT], scenario: Callable[[WorldT], Coroutine[Any, Any, None]]
) -> WorldT:
    """The world after `scenario`; what fails is told with the seed and what happened before."""
    worlds: list[WorldT] = []

    async def main() -> None:
        worlds.append(new_world(seed))
        await worlds[0].play(scenario(worlds[0]))

    try:
        with _seldom_collected():
            run_virtually(main())
    except AssertionError as broken:
        raise AssertionError(f"seed {seed}: {broken}") from broken
    return worlds[0]
