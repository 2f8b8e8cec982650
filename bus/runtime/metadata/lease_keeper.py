"""This broker's lease, which it writes anew all the time, and those of the others, which it reads when they matter.

Each renewal goes the way of a commit, in a thread of its own, so it tells in time that this broker cannot write: also
if the call neither returns nor fails. What follows from the leases is decided in cluster_metadata/broker_liveness.py.
Brokers of earlier releases have no lease but a line in the file of their lock: while there may be any, this one writes
that too, behind its lease, and reads theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from bus.cluster_metadata.broker_liveness import Lease, LeaseWatch, WriteSession, encode_lease
from bus.errors import StorageFault
from bus.ports import Clock, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope, time_limit
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)

_TICK_MS = 200
_READ_PAUSE_MS = 90  # a lease is read ten times a second at most, however often it is asked about


class LeaseKeeper:
    """`start` before this broker joins the cluster, `stop` once it leads nothing. `watch`: what `look` has read.
    `has_older`: there may be brokers of a release without leases."""

    def __init__(
        self,
        broker_id: int,
        storage: Storage,
        config: BrokerConfig,
        *,
        has_older: Callable[[], bool],
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self._id = broker_id
        self._storage = storage
        self._has_older = has_older
        self._interval_ms = config.broker_heartbeat_interval_ms
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._lease = Lease(0)
        self._is_due = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.watch = LeaseWatch(config.broker_session_timeout_ms)
        self.writes = WriteSession(
            config.broker_session_timeout_ms, tick_ms=_TICK_MS, now_ms=self._clock.monotonic_ms()
        )

    @property
    def own(self) -> Lease:
        return self._lease

    def start(self) -> None:
        self._running = self._tasks.start(self._run(), "lease")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def tell(self, unreached: str) -> None:
        """Say in the lease, at once if it is news, which incarnation of the controller is not reached; "": it is."""
        if self._lease.unreached != unreached:
            self._lease = Lease(self._lease.renewals, unreached)
            self._is_due.set()

    async def look(self, broker_ids: Collection[int]) -> None:
        """Read the leases of those brokers, but the ones that were read a moment ago. Raises `StorageFault`."""
        read_ms = self._clock.monotonic_ms() - _READ_PAUSE_MS
        due = [one for one in broker_ids if one != self._id and not self.watch.was_read_since(one, read_ms)]
        if not due:
            return

        has_older, storage = self._has_older(), self._storage

        def read(one: int) -> tuple[bytes, bytes]:
            return storage.read_lease(one), storage.read_lock(one) if has_older else b""

        found = await self._calls.control(lambda: {one: read(one) if storage.is_alive(one) else None for one in due})
        now_ms = self._clock.monotonic_ms()
        for broker_id, seen in found.items():
            if seen is None:
                self.watch.note_ended(broker_id)
            else:
                content, lock = seen
                self.watch.note(broker_id, content, now_ms, lock=lock)

    def find_working(self) -> dict[int, Lease]:
        """Return the leases of the brokers that may be at work, as far as their leases were read, and of this one."""
        return {**self.watch.find_working(self._clock.monotonic_ms()), self._id: self._lease}

    async def _run(self) -> None:
        while True:
            try:
                await self._renew()
            except Exception:
                _log.exception("a renewal of the broker's lease failed; the next one follows")
            due_ms = self._clock.monotonic_ms() + self._interval_ms
            while not self._is_due.is_set() and (left_ms := due_ms - self._clock.monotonic_ms()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    async with time_limit(min(left_ms, _TICK_MS) / 1000):
                        await self._is_due.wait()
                self._tick()

    async def _renew(self) -> None:
        self._is_due.clear()
        self._lease = Lease(self._lease.renewals + 1, self._lease.unreached)
        began_ms = self._clock.monotonic_ms()
        content, has_older = encode_lease(self._lease), self._has_older()

        def renew() -> None:
            self._storage.renew_lease(content)
            if has_older:  # behind the lease: where that cannot be written, neither changes
                self._storage.renew_lock()

        renewal = self._calls.renew(renew)
        while not renewal.done():
            await asyncio.wait([renewal], timeout=_TICK_MS / 1000)
            self._tick()
        try:
            renewal.result()
        except StorageFault as fault:
            self.writes.note_failure(self._clock.monotonic_ms())
            if not self.writes.cannot_write:
                _log.warning("the lease of broker %d could not be renewed: %s", self._id, fault)
            return
        if self.writes.cannot_write:
            _log.warning("broker %d can write again", self._id)
        self.writes.note_success(began_ms)

    def _tick(self) -> None:
        could_write = not self.writes.cannot_write
        self.writes.tick(self._clock.monotonic_ms())
        if could_write and self.writes.cannot_write:
            _log.error(
                "broker %d has not been able to write for a session: others are to lead what it leads until it can",
                self._id,
            )
