"""A whole broker against its clients, its disk and a network, under virtual time.

The broker is the real one, composed as `bus.broker` composes it: metadata log, controller, partitions, maintenance,
group coordinator, the API and the handlers of gRPC, over the real Delta tables. Replaced are the store and the threads
(broker_faults.py), the clock, the transport of gRPC (broker_network.py) and what makes ids. One seed decides everything
that happens.

Fault model: that of the disk and the threads is in broker_faults.py, that of the network in broker_network.py. The
broker's process dies at any operation of the store or at any other time, or is stopped in order, and is started again
on the same disk. It may be paused at any await, and before and after any call in a thread: its tasks and timers stand
still, it holds its locks, and later it goes on. The wall clock jumps.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import logging
import re
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from bus.broker import BrokerCore
from bus.cluster_metadata import cluster_records
from bus.cluster_metadata.broker_decisions import BrokerIdentity
from bus.cluster_metadata.partition_placement import find_imbalance
from bus.errors import BusError, StorageFault
from bus.grpc_api.server.connections.peers import GrpcPeers
from bus.model import TopicPartition
from bus.partition_log import log_life
from bus.platform import reentry
from bus.runtime.blocking import BlockingCalls
from bus.runtime.coordinators import staged_sweeper
from bus.runtime.metadata import metadata_maintenance
from bus.runtime.partitions import partition_maintenance, partition_settings
from bus.runtime.partitions.fetches import Stopping
from bus.settings.broker import BrokerConfig
from bus.storage_delta.log import checkpoints
from bus.storage_delta.root import open_storage_on
from tests.simulation import world as base
from tests.simulation.broker_faults import Crashed, Disk, Faults, FaultyStore, SimulatedPool, SimulatedShares
from tests.simulation.broker_invariants import INVARIANTS, Invariant
from tests.simulation.broker_network import PeerTransport, Server
from tests.simulation.cluster_invariants import CLUSTER_INVARIANTS, STALE_S_MAX, TableLeaders, folder_of
from tests.simulation.memos import remembered
from tests.simulation.metadata_journal import MetadataJournal, parse_version, version_of
from tests.support.memory_store import MemoryLock

if TYPE_CHECKING:
    from tests.simulation.broker_programs import Place, Program

_PORT = 9094  # of broker 0; those of the others follow
_USER_PORTS = 1_000  # above those of brokers
_EPOCH_MS = 1_700_000_000_000
_BRIEF_MAX = 300
# No run is long enough for what a broker does every few hundred commits.
_SCALED_DOWN: tuple[tuple[Any, str, int], ...] = (
    (checkpoints, "_COMMITS_BETWEEN_MIN", 5),
    (cluster_records, "_SNAPSHOT_RECORDS_MIN", 12),
    (metadata_maintenance, "_ROLLED_FILES", 5),
    (metadata_maintenance, "_RETRY_RECORDS", 5),
    (log_life, "DIRTY_FILES_MIN", 4),
    (log_life, "DIRTY_FILES_MAX", 12),
    (log_life, "RUN_FILES_MAX", 6),
    (log_life, "SMALL_FILES_MAX", 12),
    (staged_sweeper, "_INTERVAL_S", 5),
    (staged_sweeper, "_LED_S", 1),
    (staged_sweeper, "_LOOK_S", 1),
    (partition_settings, "INTERNAL_VERSION_COUNT_MAX", 12),
    (partition_maintenance, "_LOOK_FILES", 3),
    (partition_maintenance, "_CLEAN_VERSIONS_MIN", 4),
    (partition_maintenance, "_TAIL_VERSIONS_MAX", 8),
)
DISK_FAULTS = ("cannot be written", "cannot be read", "does not answer")
# A supervisor starts a process again whose start failed.
_RESTART_S = 0.5

_living_in: contextvars.ContextVar[BrokerLife | None] = contextvars.ContextVar("living_in", default=None)


class BrokerLife:
    """One process. Once it `is_over`, nothing of it has any effect on anything else."""

    def __init__(self, world: BrokerWorld, broker: SimulatedBroker, number: int) -> None:
        self._world = world
        self._broker = broker
        self.config = broker.config
        self.name = f"b{self.config.broker_id}.{number}"
        self.is_over = False
        self.is_serving = False
        self.is_paused = False
        self.went_on_at = world.now  # when it began, or went on after it had stood still
        self.incarnation = ""
        self.held: list[asyncio.Handle] = []  # what goes on with a life that is paused
        self.locks: list[MemoryLock] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.Context()  # a process of its own: it has nothing of the call during which it began
        self.context.run(_living_in.set, self)
        stopping = Stopping()
        self.server = Server(world, self, stopping)
        self._peers = GrpcPeers(PeerTransport(world, self))
        self.core = BrokerCore(
            self.config,
            clock=broker.clock,
            calls=BlockingCalls(
                self.config.num_io_threads,
                clock=broker.clock,
                new_pool=lambda name, threads: SimulatedPool(world, self, threads),
                processor_s=world.processor_s,
            ),
            shares=SimulatedShares(world),
            stopping=stopping,
            peers=self._peers,
            new_uuid=lambda: str(uuid.uuid4()),
        )

    @property
    def applied_offset(self) -> int:
        """Up to which it has applied the metadata; 0 while it starts."""
        return self.core.cluster.metadata.applied_offset if self.is_serving else 0

    def run(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self.context.run(asyncio.get_running_loop().create_task, coroutine, name=f"{self.name}/{name}")

    def note_task(self, task: asyncio.Task[Any]) -> None:
        if self.is_over:
            task.cancel()
        else:
            self._tasks[task] = None
            task.add_done_callback(lambda _: self._tasks.pop(task, None))

    def pause(self, seconds: float) -> None:
        if not self.is_paused and not self.is_over:
            self._world.note(self.name, f"stands still for {seconds:.1f} s")
            self.is_paused = True
            self._world.at(seconds, self.go_on)

    def go_on(self) -> None:
        if self.is_paused:
            self._world.note(self.name, "goes on")
            self.is_paused, self.went_on_at = False, self._world.now
            held, self.held = self.held, []
            self._world.call_again(held)

    async def live(self) -> None:
        """Live until it serves, or is over."""
        try:
            store, broker_id = FaultyStore(self._world, self), self.config.broker_id
            storage = open_storage_on(
                store,
                holder=self.name,
                broker_id=broker_id,
                staged_cache_bytes=self.config.transaction_staged_cache_bytes,
                clock=self._broker.clock,
            )
            self.server.listen(BrokerIdentity(storage.cluster_id, broker_id, storage.incarnation))
            self.incarnation = storage.incarnation
            self._world.lives[storage.incarnation] = self
            api = await self.core.start(storage, self.config.serving_listeners[0].bind)
        except Crashed:
            return
        except StorageFault as fault:
            self._world.note(self.name, "cannot start", fault)
            self.crash(_RESTART_S)
            return
        except Exception as error:
            self._world.fail(AssertionError(f"NoUnforeseenError: {self.name} cannot start: {error!r}"))
            raise
        self.server.serve(api, self._peers)
        self.is_serving = True
        self.core.serve()
        self._world.note(self.name, "serves")

    def crash(self, down_s: float | None = None) -> None:
        """Memory and connections are gone; what is on the disk stays."""
        if self.is_over:
            return
        self._world.note(self.name, "is over")
        self.is_over, self.is_serving = True, False
        for lock in self.locks:
            lock.release()
        self._world.disk.crash()
        for task in list(self._tasks):
            task.cancel()
        self.server.break_off()
        self.go_on()
        self._broker.on_over(self, self._world.down_s() if down_s is None else down_s)

    async def stop(self) -> None:
        """Stop in order, as at SIGTERM."""
        self._world.note(self.name, "is told to stop")
        self.is_serving, told_at = False, self._world.now
        await self.core.leave()
        self._world.tell("on_left", self, self._world.now - told_at)
        self.core.begin_stop()
        await self.server.stop()
        await self.core.stop()
        self.crash()


class MachineClock:
    """That of one broker's machine: the world's, but for what its wall clock is ahead."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._world.now_ms() + self.ahead_ms

    def monotonic_ms(self) -> float:
        return self._world.monotonic_ms()


class SimulatedBroker:
    """One broker of the cluster through all its lives."""

    def __init__(self, world: BrokerWorld, config: BrokerConfig) -> None:
        self._world = world
        self.config = config
        self.name = f"b{config.broker_id}"
        self._numbers = itertools.count(1)
        self.clock = MachineClock(world)
        self.life: BrokerLife | None = None

    def set_wall_clock(self, ahead_ms: int) -> None:
        self._world.note(self.name, f"has a wall clock that jumps to {ahead_ms} ms ahead of the others")
        self.clock.ahead_ms = ahead_ms

    def start(self) -> None:
        self.life = BrokerLife(self._world, self, next(self._numbers))
        self.life.run(self.life.live(), "start")

    def crash(self) -> None:
        if self.life is not None:
            self.life.crash()

    def pause(self, seconds: float) -> None:
        if self.life is not None:
            self.life.pause(seconds)

    def stop(self) -> None:
        if self.life is not None and self.life.is_serving:
            self.life.run(self.life.stop(), "stop")

    def on_over(self, life: BrokerLife, down_s: float) -> None:
        self._world.at(down_s, self.start)


class BrokerWorld(base.SimulatedWorld):
    """Also the clock of everything in it."""

    def __init__(
        self, seed: int, faults: Faults, *, broker_count: int = 1, has_user_listener: bool = False, **configs: Any
    ) -> None:
        """`has_user_listener`: users log in there, everyone else asks without a login by another one."""
        super().__init__(seed)
        self.faults = faults
        self._wall_ahead_ms = 0
        self._processor_s = 0.0
        self.disk = Disk(self)
        self._loop.set_task_factory(_create_task)
        self._loop.new_handle, self._loop.new_timer = _Handle, _Timer
        config = BrokerConfig(
            offsets_topic_num_partitions=2,
            group_initial_rebalance_delay_ms=0,
            group_min_session_timeout_ms=1_000,
            log_retention_check_interval_ms=2_000,
            log_cleaner_backoff_ms=500,
            offsets_retention_check_interval_ms=500,
            num_io_threads=3,
            request_timeout_ms=5_000,
            controlled_shutdown_timeout_ms=5_000,
            leader_imbalance_check_interval_seconds=2,
            log_segment_delete_delay_ms=500,
            delta_log_retention_ms=self.random.choice((1_000, 10_000)),
            producer_id_expiration_ms=self.random.choice((3_000, 86_400_000)),
            log_cache_bytes=self.random.choice((0, 1_000, 1 << 20)),
            transaction_staged_cache_bytes=self.random.choice((0, 5_000, 1 << 20)),
            **configs,
        )
        self.brokers = [
            SimulatedBroker(self, replace(config, broker_id=number, **_listening_at(_PORT + number, has_user_listener)))
            for number in range(broker_count)
        ]
        self.cut_links: set[tuple[int, int]] = set()  # by broker id, from and to
        # Of brokers, by id, to whom no connection comes in, of a broker or a client; what they open themselves works.
        self.closed_addresses: set[int] = set()
        # Whose disk fails, by broker id: the same files, as they are well at the other brokers.
        self.unwritable_disks: set[int] = set()
        self.unreadable_disks: set[int] = set()
        self.hung_disks: set[int] = set()
        self.acting: BrokerLife | None = None  # whose operation of the store this is; None: the disk's own
        self.operation = ""
        self.lives: dict[str, BrokerLife] = {}  # by incarnation
        self.leaders = TableLeaders()
        self.journal = MetadataJournal(self)
        self.is_rolling = False  # brokers leave in order, one at a time, and nothing fails
        self.is_well = False  # all brokers are unfenced, and nothing fails
        self.programs: list[Program] = []
        self.errors: list[str] = []  # what brokers have logged as one
        self.live_topics: set[str] = set()  # ids of topics that were created and not deleted
        self.compacted_topics: set[str] = set()  # by name: a record may go if a newer one has its key
        self.lossy_topics: set[str] = set()  # by name: records go by retention or deletion
        self.invariants = [invariant(self) for invariant in (*INVARIANTS, *CLUSTER_INVARIANTS)]
        # By event: who listens to it, of the invariants that there were.
        self._listeners: dict[str, tuple[list[Invariant], list[tuple[Invariant, Callable[..., None]]]]] = {}

    @property
    def broker(self) -> SimulatedBroker:
        """The one that there is."""
        (broker,) = self.brokers
        return broker

    def any_broker(self) -> SimulatedBroker:
        return self.brokers[0] if len(self.brokers) == 1 else self.random.choice(self.brokers)

    def broker_at(self, port: int) -> SimulatedBroker:
        return self.brokers[port - _PORT]

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()

    # ------------------------------------------------------------ time and chance

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self.now * 1000) + self._wall_ahead_ms

    def monotonic_ms(self) -> float:
        return self.now * 1000

    def processor_s(self) -> float:
        self._processor_s += self.random.uniform(0, 0.002)
        return self._processor_s

    def set_wall_clock(self, ahead_ms: int) -> None:
        self.note("clock", f"jumps to {ahead_ms} ms ahead")
        self._wall_ahead_ms = ahead_ms

    def call_delay(self) -> float:
        """Before a call in a thread is made, and before its result is there."""
        if self.chance(self.faults.slow_call):
            return self.random.uniform(0, 3.0)
        return self.random.choice((0.0, 0.0002, 0.001, self.random.uniform(0, 0.01)))

    def call_again(self, handles: Sequence[asyncio.Handle]) -> None:
        self._loop.call_again(handles)

    # ------------------------------------------------------------ what is seen

    def brief(self, about: Any) -> str:
        if isinstance(about, BusError):
            return f"{about.code.name} {about}"[:_BRIEF_MAX]
        return " ".join(str(about).split())[:_BRIEF_MAX]

    def tell(self, event: str, *about: Any) -> None:
        """Every invariant that listens. One that is broken ends the run; the code under test goes on, as it would."""
        for invariant, listen in self._listeners_of(event):
            try:
                listen(*about)
            except (AssertionError, StorageFault) as broken:
                self.fail(AssertionError(f"{type(invariant).__name__}: {broken}"))

    def _listeners_of(self, event: str) -> list[tuple[Invariant, Callable[..., None]]]:
        known = self._listeners.get(event)
        if known is None or known[0] != self.invariants:
            heard = [(one, getattr(one, event)) for one in self.invariants if _listens(one, event)]
            self._listeners[event] = known = list(self.invariants), heard
        return known[1]

    def tell_of_file(self, key: str, data: bytes) -> None:
        """Report a file that comes to be on the disk."""
        self.tell("on_created", key, data)
        version = parse_version(key, data)
        if version is not None:
            self.leaders.take(version, self.now)
            self.tell("on_version", version)
            change = self.journal.take(version)
            if change is not None:
                self.tell("on_metadata", change)

    def tell_of_loss(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            self.leaders.lose(*name)
            self.journal.lose(*name)
        self.tell("on_lost", key)

    def broker_id_of(self, incarnation: str | None) -> int | None:
        life = self.lives.get(incarnation or "")
        return None if life is None else life.config.broker_id

    def name_of(self, incarnation: str | None) -> str:
        life = self.lives.get(incarnation or "")
        return "no broker" if life is None else life.name

    def may_be_stale(self, life: BrokerLife, name: TopicPartition, asked_at: float) -> bool:
        """True if that life was replaced as leader so shortly before `asked_at` that it need not know of it."""
        replaced_at = self.leaders.replaced_at(folder_of(name), life.incarnation)
        return replaced_at is not None and asked_at <= replaced_at + STALE_S_MAX

    def cut(self, links: Collection[tuple[int, int]], seconds: float) -> None:
        """From broker to broker; the other way may be open."""
        self.note("network", f"cuts {sorted(links)} for {seconds:.1f} s")
        self.cut_links.update(links)
        self.at(seconds, lambda: self.cut_links.difference_update(links))

    def close_address(self, broker_id: int, seconds: float) -> None:
        self.note("network", f"lets nothing come in at broker {broker_id} for {seconds:.1f} s")
        self.closed_addresses.add(broker_id)
        self.at(seconds, lambda: self.closed_addresses.discard(broker_id))

    def fail_disk(self, broker_id: int, how: str, seconds: float) -> None:
        """Fail it for that broker alone, in one of the ways of `DISK_FAULTS`."""
        self.note("disk", f"{how} by broker {broker_id} for {seconds:.1f} s")
        failing = {
            "cannot be written": [self.unwritable_disks],
            "cannot be read": [self.unwritable_disks, self.unreadable_disks],
            "does not answer": [self.hung_disks],
        }
        for disks in failing[how]:
            disks.add(broker_id)
            self.at(seconds, functools.partial(disks.discard, broker_id))

    def find_majorities(self) -> list[frozenset[int]]:
        """The largest sets of more than half of the brokers, each of which is at work, has a disk that is well, can be
        reached at its address, and reaches all others of its set, both ways."""
        able = self._find_able()
        found: list[frozenset[int]] = []
        for count in range(len(able), len(self.brokers) // 2, -1):
            for chosen in map(frozenset, itertools.combinations(able, count)):
                is_whole = not any(link in self.cut_links for link in itertools.permutations(chosen, 2))
                if is_whole and not any(chosen < larger for larger in found):
                    found.append(chosen)
        return found

    def find_reached_by(self, broker_id: int) -> frozenset[int]:
        """The others to which it has links both ways, each of which is at work, can read and write, and is reached at
        its address."""
        links = {one: ((one, broker_id), (broker_id, one)) for one in self._find_able() if one != broker_id}
        return frozenset(one for one, both in links.items() if not self.cut_links.intersection(both))

    def _find_able(self) -> list[int]:
        """Those that are at work, have a disk that is well, and can be reached at their address."""
        failing = self.unwritable_disks | self.unreadable_disks | self.hung_disks | self.closed_addresses
        return [
            broker.config.broker_id
            for broker in self.brokers
            if self.is_live(broker) and broker.config.broker_id not in failing
        ]

    async def wait_until_whole(self, seconds_max: float) -> None:
        """All brokers serve and are unfenced, and each leads what it is the preferred leader of."""
        deadline = self.now + seconds_max
        everyone = [broker.config.broker_id for broker in self.brokers]
        while (
            self.journal.state.unfenced_brokers != everyone
            or not all(self.is_live(broker) for broker in self.brokers)
            or self.why_unsettled(self.brokers) is not None
        ):
            assert self.now < deadline, f"EverythingEnds: the cluster is not whole after {seconds_max:.0f} s"
            await asyncio.sleep(0.1)

    async def tick(self) -> None:
        """Judge what is to be so soon again, as long as the world is not healed."""
        while not self.is_healed:
            self.tell("on_tick")
            await asyncio.sleep(0.1)

    def is_live(self, broker: SimulatedBroker) -> bool:
        return broker.life is not None and broker.life.is_serving and not broker.life.is_paused

    def may_delete(self, place: Place) -> bool:
        return place.topic in self.lossy_topics

    # ------------------------------------------------------------ the run

    def end(self) -> None:
        for life in self.lives.values():
            life.go_on()

    async def settle(self, seconds_max: float = 120.0) -> None:
        """The faults end; within a bounded time everything comes to its end, and so does what is asked then."""
        self.note("world", "heals")
        self.is_healed = True
        self.cut_links.clear()
        for failing in (self.unwritable_disks, self.unreadable_disks, self.hung_disks, self.closed_addresses):
            failing.clear()
        deadline = self.now + seconds_max
        while (why := self.why_unsettled()) is not None:
            assert self.now < deadline, f"EverythingEnds: {seconds_max:.0f} s after the last fault: {why}"
            await asyncio.sleep(0.5)
        for program in self.programs:
            program.go_on()
        deadline = self.now + seconds_max
        while (why := self.why_unsettled()) is not None:
            assert self.now < deadline, f"EverythingEnds: {seconds_max:.0f} s after it was asked: {why}"
            await asyncio.sleep(0.5)
        self.tell("check_end")
        for program in self.programs:
            await program.check_end()

    def why_unsettled(self, brokers: Sequence[SimulatedBroker] = ()) -> str | None:
        """`brokers`: ask for these alone."""
        for broker in self.brokers:
            if broker.life is None or not broker.life.is_serving:
                return f"{broker.name} does not serve"
            if broker.life.is_paused:
                return f"{broker.name} stands still"
            if (overdue := broker.life.server.find_overdue()) is not None:
                return overdue
            if find_imbalance(broker.life.core.cluster.state, 10):
                return f"{broker.name} knows of leaders that are not the preferred ones"
        applied = {broker.life.core.cluster.metadata.applied_offset for broker in self.brokers if broker.life}
        if len(applied) > 1:
            return f"brokers have followed the metadata to {applied}"
        programs = [] if brokers else self.programs
        return next((why for program in programs if (why := program.why_unsettled()) is not None), None)


def _listens(invariant: Invariant, event: str) -> bool:
    is_own = event in vars(invariant)  # of a test
    return is_own or getattr(type(invariant), event) is not getattr(Invariant, event)


def _listening_at(port: int, has_user_listener: bool) -> dict[str, Any]:
    """Configs of a broker."""
    if not has_user_listener:
        return {"listen": f"127.0.0.1:{port}"}
    listeners = (f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{port + _USER_PORTS}")
    return {"listeners": listeners, "inter_broker_listener_name": "PLAINTEXT"}


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    life = _living_in.get()
    if life is not None:
        life.note_task(task)
    return task


class _HeldWhilePaused:
    """A handle of the loop whose call waits while the life that it is made for is paused."""

    __slots__ = ()

    def _run(self) -> None:
        handle: Any = self
        life = handle._context.get(_living_in)
        if life is not None and life.is_paused:
            life.held.append(handle)
        else:
            super()._run()  # type: ignore[misc]  # that of the handle


class _Handle(_HeldWhilePaused, asyncio.Handle):
    __slots__ = ()


class _Timer(_HeldWhilePaused, asyncio.TimerHandle):
    __slots__ = ()


class _BrokersLog(logging.Handler):
    """Copies the broker's log to the trace; an unforeseen exception in it fails the run."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        life = _living_in.get()
        if life is not None and life.is_over:
            return
        who = "program" if life is None else life.name
        place = "-".join(str(getattr(record, key)) for key in ("topic", "partition") if hasattr(record, key))
        # How long the machine took is not decided by the seed.
        self._world.note(who, f"logs: {re.sub(r' in [0-9]+ ms', '', record.getMessage())}", place)
        if record.levelno >= logging.ERROR:
            self._world.errors.append(record.getMessage())
        if record.exc_info and life is not None and not isinstance(record.exc_info[1], Crashed):
            self._world.fail(AssertionError(f"NoUnforeseenError: {record.getMessage()}: {record.exc_info[1]!r}"))


@contextlib.contextmanager
def _replaced(seed: int) -> Iterator[None]:
    """Replace what no port of the broker offers to be replaced."""
    random = Random(seed)
    with contextlib.ExitStack() as patches:
        new_uuid = lambda: uuid.UUID(int=random.getrandbits(128), version=4)  # noqa: E731  # a patch is no method
        patches.enter_context(mock.patch.object(uuid, "uuid4", new_uuid))
        for module, name, value in _SCALED_DOWN:
            patches.enter_context(mock.patch.object(module, name, value))
        patches.enter_context(remembered())
        # Else a thread hands them on, at a time that the seed does not decide.
        patches.enter_context(mock.patch.object(reentry._Later, "add_line", lambda _, line: line()))
        yield


def simulate(
    seed: int, new_world: Callable[[int], BrokerWorld], scenario: Callable[[Any], Coroutine[Any, Any, None]]
) -> BrokerWorld:
    """See `world.simulate`."""
    logger = logging.getLogger("bus")
    before = (logger.level, logger.propagate, list(logger.handlers))

    def make(seed: int) -> BrokerWorld:
        made = new_world(seed)
        logger.handlers[:] = [_BrokersLog(made)]
        return made

    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with _replaced(seed):
            return base.simulate(seed, make, scenario)
    finally:
        logger.setLevel(before[0])
        logger.propagate = before[1]
        logger.handlers[:] = before[2]
