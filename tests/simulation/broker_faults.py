"""Faults beneath a simulated broker: of its disk, its threads, its process.

`Disk` is what outlives a broker. It keeps the promises of `ObjectStore` and no others: what a call has made durable
stays; what an `OutcomeUnknown` left behind may be there at once, later or never, and is lost in a crash unless it was
confirmed; a crash in a write under a unique name leaves a part of it. `FaultyStore` is the disk as one life of a broker
sees it: each operation may fail before or after it took effect, or be the last one of that life. `SimulatedPool` stands
for a pool of threads: a call is taken up in order, made at one moment some time later, and its result arrives later
still, so that other tasks run in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from bus.errors import StorageFault, StorageFull
from bus.runtime.tasks import LoopShare, LoopShares
from bus.storage_delta.stores.store import Data, KeyExists, Listing, OutcomeUnknown, Stamp, Written
from tests.simulation.metadata_journal import version_of
from tests.support.memory_store import MemoryLock, MemoryStore

if TYPE_CHECKING:
    from tests.simulation.broker_world import BrokerLife, BrokerWorld

T = TypeVar("T")


@dataclass(frozen=True)
class Faults:
    """Chances of one in so many; 0: never."""

    # Of an operation of the store.
    failed_read: int = 150
    failed_write: int = 60
    full_disk: int = 200
    unknown_outcome: int = 60
    crash_in_store: int = 250
    # Of a call in a thread.
    slow_call: int = 40
    # Of a request, an answer, a stream.
    lost_request: int = 20
    doubled_request: int = 20
    lost_answer: int = 20
    broken_stream: int = 20
    silent_stream: int = 60
    # Of a share of the event loop that is asked about.
    used_up_share: int = 12


def some_faults(random: Random, *, rarer: int = 1) -> Faults:
    """Some kinds of faults often, others never: where all are as likely, one hides what another would lead to."""
    usual = {name: one_in * rarer for name, one_in in asdict(Faults()).items()}
    return Faults(**{name: random.choice((0, one_in, one_in, one_in // 5 + 1)) for name, one_in in usual.items()})


NO_FAULTS = Faults(**{each.name: 0 for each in fields(Faults)})


class Crashed(BaseException):
    """The process is gone in the middle of an operation. No handler of the code under test catches it for good."""


class Disk:
    """Tells the world of each file that comes to be there, is deleted or is lost in a crash."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self.files = MemoryStore(world.now_ms)
        self._unconfirmed: dict[str, bytes] = {}  # there, but not known to survive a crash
        self._dropped: set[str] = set()  # versions
        self._found: dict[Hashable, Any] = {}  # what judges have made of the files as they are now

    def create(self, key: str, data: Data, *, after: Written | None, is_confirmed: bool) -> Stamp:
        stamp = self.files.create(key, data, after=after)
        self._found.clear()
        if not is_confirmed:
            self._unconfirmed[key] = bytes(data)
        self._world.tell_of_file(key, bytes(data))
        return stamp

    def create_later(self, key: str, data: bytes) -> None:
        """Act as a network file system that tries a lost call again. Versions are dropped here after a second, sooner
        than any of them gives up: one that was there and was dropped meanwhile does not come back."""
        if key in self._dropped:
            return
        self._world.acting = None
        try:
            self.create(key, data, after=None, is_confirmed=True)
            self._world.note("disk", "makes what was asked for long ago", key)
        except KeyExists:
            return

    def confirm(self, folder: str) -> None:
        """Keep everything in that folder for good."""
        for key in [key for key in self._unconfirmed if key.rpartition("/")[0] == folder]:
            del self._unconfirmed[key]

    def put(self, key: str, data: Data, *, is_confirmed: bool = True) -> None:
        is_new = key not in self._keys([key])
        self.files.put(key, data)
        self._found.clear()
        self._unconfirmed.pop(key, None)
        if not is_confirmed:
            self._unconfirmed[key] = bytes(data)
        if is_new:
            self._world.tell_of_file(key, bytes(data))
        self._world.tell("on_put", key)

    def delete(self, key: str) -> None:
        if key not in self._keys([key]):
            return
        self.files.delete(key)
        self._found.clear()
        self._unconfirmed.pop(key, None)
        if version_of(key) is not None:
            self._dropped.add(key)
        self._world.tell("on_deleted", key)

    def delete_folder(self, folder: str) -> None:
        for key in self.keys_below(folder):
            self.delete(key)

    def keys_below(self, folder: str) -> list[str]:
        found = self.files.list(folder)
        below = [key for name in found.folders for key in self.keys_below(f"{folder}/{name}")]
        return [*(f"{folder}/{entry.name}" for entry in found.files), *below]

    def _keys(self, keys: Sequence[str]) -> set[str]:
        return {key for key, size in zip(keys, self.files.sizes(keys), strict=True) if size is not None}

    def crash(self) -> None:
        """The power fails: what was not confirmed may be gone."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for key in unconfirmed:
            if self._world.random.random() < 0.5:
                self._world.note("disk", "loses what was not confirmed", key)
                self.lose(key)

    def lose(self, key: str) -> None:
        self.files.delete(key)
        self._found.clear()
        self._world.tell_of_loss(key)

    def find(self, what: Hashable, read: Callable[[], T]) -> T:
        """Return what `read` makes of the files, computed once for all callers until one of them changes."""
        if what not in self._found:
            self._found[what] = read()
        found: T = self._found[what]
        return found


class FaultyStore:
    """Implements `ObjectStore` for one life of a broker."""

    def __init__(self, world: BrokerWorld, life: BrokerLife) -> None:
        self._world = world
        self._life = life
        self._disk = world.disk

    @property
    def url(self) -> str:
        return "simulated:"

    def table_url(self, folder: str) -> str:
        """Other libraries are said to reach it, so checkpoints are written."""
        return f"simulated:/{folder}"

    # ------------------------------------------------------------ what happens around an operation

    def _begin(self, operation: str, key: str, *, is_write: bool = False) -> None:
        """Raises `StorageFault`: nothing was done."""
        world, faults = self._world, self._world.faults
        if self._life.is_over:
            raise Crashed
        world.acting, world.operation = self._life, operation
        if self._life.config.broker_id in (world.unwritable_disks if is_write else world.unreadable_disks):
            raise StorageFault(f"simulated: {operation} of {key} by broker {self._life.config.broker_id}")
        if world.chance(faults.crash_in_store):
            self._crash(operation, key, "before")
        if is_write and world.chance(faults.full_disk):
            world.note("disk", f"is full: {operation}", key)
            raise StorageFull(f"simulated: no room for {key}")
        if world.chance(faults.failed_write if is_write else faults.failed_read):
            world.note("disk", f"fails: {operation}", key)
            raise StorageFault(f"simulated: {operation} of {key}")

    def _end(self, operation: str, key: str) -> None:
        if self._world.chance(self._world.faults.crash_in_store):
            self._crash(operation, key, "after")

    def _crash(self, operation: str, key: str, when: str) -> None:
        self._world.note(self._life.name, f"dies {when} {operation}", key)
        self._life.crash()
        raise Crashed

    # ------------------------------------------------------------ writing

    def create(self, key: str, data: Data, *, after: Written | None = None) -> Stamp:
        self._begin("create", key, is_write=True)
        world, disk = self._world, self._disk
        if world.chance(world.faults.unknown_outcome):
            fate = world.random.choice(("there", "there", "never", "later"))
            world.note("disk", f"does not tell that it is {fate}", key)
            if fate == "there":
                disk.create(key, data, after=after, is_confirmed=False)
            elif fate == "later" and after is None:
                late = bytes(data)
                world.at(world.random.choice((0.01, world.random.uniform(0, 5))), lambda: disk.create_later(key, late))
            self._end("create", key)
            raise OutcomeUnknown(f"simulated: {key}")
        stamp = disk.create(key, data, after=after, is_confirmed=True)
        self._end("create", key)
        return stamp

    def confirm(self, key: str, data: Data) -> None:
        self.put(key, data)

    def put(self, key: str, data: Data) -> None:
        self._begin("put", key, is_write=True)
        if self._world.chance(self._world.faults.unknown_outcome):
            self._disk.put(key, data, is_confirmed=False)
            self._end("put", key)
            raise OutcomeUnknown(f"simulated: {key}")
        self._disk.put(key, data)
        self._end("put", key)

    def write_unique(self, key: str, data: Data) -> None:
        self.write_parts(key, (data,))

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        self._begin("write", key, is_write=True)
        whole = b"".join(map(bytes, parts))
        if self._world.chance(self._world.faults.crash_in_store):
            part = whole[: self._world.random.randrange(len(whole) + 1)]
            self._disk.create(key, part, after=None, is_confirmed=True)
            self._crash("write", key, f"{len(part)} bytes into")
        self._disk.create(key, whole, after=None, is_confirmed=True)
        self._end("write", key)

    def delete(self, key: str) -> None:
        self._begin("delete", key, is_write=True)
        self._disk.delete(key)
        self._end("delete", key)

    def delete_folder(self, folder: str) -> None:
        self._begin("delete folder", folder, is_write=True)
        for key in self._disk.keys_below(folder):
            self._begin("delete in folder", key, is_write=True)
            self._disk.delete(key)
        self._end("delete folder", folder)

    def sync(self, folder: str, names: Sequence[str] = ()) -> None:
        self._begin("sync", folder, is_write=True)
        self._disk.confirm(folder)

    # ------------------------------------------------------------ reading

    def stamp(self, key: str) -> Stamp:
        self._begin("stamp", key)
        return self._disk.files.stamp(key)

    def get(self, key: str) -> bytes:
        self._begin("get", key)
        return self._disk.files.get(key)

    def get_range(self, key: str, start: int, length: int) -> Data:
        self._begin("get", key)
        return self._disk.files.get_range(key, start, length)

    def size(self, key: str) -> int:
        self._begin("size", key)
        return self._disk.files.size(key)

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        self._begin("sizes", ",".join(keys[:1]))
        return self._disk.files.sizes(keys)

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        self._begin("list", folder)
        return self._disk.files.list(folder, with_sizes=with_sizes, start_at=start_at, prefix=prefix)

    def measure_volume(self) -> None:
        self._begin("measure_volume", "")

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> MemoryLock:
        lock = self._disk.files.lock(key, holder, is_shared=is_shared)
        self._life.locks.append(lock)
        return lock

    def check_private(self) -> None:
        self._disk.files.check_private()

    def lock_holder(self, key: str) -> str | None:
        return self._disk.files.lock_holder(key)


class SimulatedPool:
    """Implements `bus.runtime.blocking.Pool`. A call of a life that is over is never made, or never heard of again."""

    def __init__(self, world: BrokerWorld, life: BrokerLife, threads: int) -> None:
        self._world = world
        self._life = life
        self._idle = threads
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._results: deque[Callable[[], None]] = deque()
        self._result_at = 0.0

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        self._take_up()
        return future

    def close(self) -> None:
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    def _take_up(self) -> None:
        while self._idle and self._waiting:
            call, future = self._waiting.popleft()
            if not future.cancelled():
                self._idle -= 1
                self._world.at(self._world.call_delay(), lambda call=call, future=future: self._make(call, future))

    def _make(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if self._life.is_over:
            return
        if self._life.config.broker_id in self._world.hung_disks:
            self._world.at(0.1, lambda: self._make(call, future))
            return
        try:
            result, error = call(), None
        except Crashed:
            return
        except BaseException as raised:
            result, error = None, raised
        self._idle += 1
        # Threads hand over their results in the order in which they have them.
        self._result_at = max(self._result_at, self._world.now + self._world.call_delay())
        self._results.append(lambda: self._settle(future, result, error))
        self._world.at_time(self._result_at, lambda: self._results.popleft()())
        self._take_up()

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.done() or self._life.is_over:
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


class SimulatedShares(LoopShares):
    """Work on the event loop has used up its share by chance, not by the clock of the machine."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__()
        self._world = world

    def begin(self) -> LoopShare:
        return _SimulatedShare(self, self._world)


class _SimulatedShare(LoopShare):
    def __init__(self, shares: LoopShares, world: BrokerWorld) -> None:
        super().__init__(shares)
        self._world = world

    @property
    def is_used_up(self) -> bool:
        return self._world.chance(self._world.faults.used_up_share)
