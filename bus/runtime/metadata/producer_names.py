"""Names of producers that are no longer used, and the sweep that forgets them (transactional.id.expiration.ms).

Guards one promise: a producer that is in use is known to be before the sweep decides, however long ago it was given its
identity. Uses are gathered, not timed: one counts as of the next sweep, which is later than it was. Time is that of
retention: a wall clock that jumps ahead forgets no name at once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from bus.cluster_metadata.cluster import ClusterState
from bus.cluster_metadata.cluster_records import ClusterRecord
from bus.cluster_metadata.producer_expiry import RECORDS_MAX, decide_expire_producers, names_of
from bus.errors import Refused
from bus.model import Step
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

# As Kafka's transaction.remove.expired.transaction.cleanup.interval.ms; more often where names expire soon.
_INTERVAL_MS_MAX = 3_600_000
_INTERVAL_SHARE = 8


class ProducerNames:
    """`start`, then `stop`. `now_ms` is the time of retention."""

    def __init__(
        self, metadata: MetadataLog, *, expiration_ms: int, now_ms: Callable[[], int], calls: BlockingCalls
    ) -> None:
        self._metadata = metadata
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms
        self._calls = calls
        self._seen: set[int] = set()  # ids of names that were used since the last sweep
        self._seen_ms: dict[int, int] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def start(self, tasks: TaskScope) -> None:
        self._sweeping = tasks.start(self._sweep_now_and_then(), "producer-names")

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    def saw(self, producer_id: int) -> None:
        """For every batch of a producer with a name."""
        self._seen.add(producer_id)

    async def _sweep_now_and_then(self) -> None:
        interval_s = min(_INTERVAL_MS_MAX, self._expiration_ms // _INTERVAL_SHARE) / 1000
        while True:
            await asyncio.sleep(max(1.0, interval_s))
            try:
                await self.sweep()
            except Exception:
                _log.exception("names of producers could not be looked through; the next time will do it")

    async def sweep(self) -> int:
        """How many names were forgotten."""
        expired_count = 0
        while True:
            self._note_seen()
            look = functools.partial(self._decide, self._metadata.cluster, seen_ms=dict(self._seen_ms))
            records = (await self._calls.compute(look)).records  # there may be many names
            if not records:
                return expired_count
            (expired,) = await self._metadata.change([functools.partial(self._decide_again, names=names_of(records))])
            if isinstance(expired, Refused):
                return expired_count
            if expired:
                _log.info("%d names of producers have expired, as they were not used", expired)
            expired_count += expired
            if len(records) < RECORDS_MAX:
                return expired_count

    def _decide_again(self, state: ClusterState, names: list[str]) -> Step[ClusterRecord, int | Refused]:
        """With what was seen up to this very moment."""
        self._note_seen()
        step = self._decide(state, seen_ms=self._seen_ms, names=names)
        return Step(step.response, step.records)

    def _decide(
        self, state: ClusterState, *, seen_ms: dict[int, int], names: list[str] | None = None
    ) -> Step[ClusterRecord, int]:
        return decide_expire_producers(
            state, seen_ms=seen_ms, now_ms=self._now_ms(), expiration_ms=self._expiration_ms, names=names
        )

    def _note_seen(self) -> None:
        now_ms = self._now_ms()
        self._seen_ms.update(dict.fromkeys(self._seen, now_ms))
        self._seen.clear()
        known = self._metadata.cluster.producers.by_id
        if len(self._seen_ms) > 2 * len(known) + RECORDS_MAX:
            self._seen_ms = {key: ms for key, ms in self._seen_ms.items() if known.find(key) is not None}
