"""The signing keys of the identity provider, kept up to date on the event loop.

Theory of operation. One task reads the key set of the provider: at the start, then every `refresh_ms`; after a failure
sooner, with growing pauses. A token that names an unknown key has the set read at once, because a provider may start to
sign with a new key at any time. Guards these promises: while the provider cannot be reached, the keys that were read
last stay in use; unknown keys cause at most one request each `UNKNOWN_KEY_PAUSE_S`, however many tokens name them; a
broker starts although the provider cannot be reached. A key that the provider has removed is used until the next
reading.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from bus.errors import count_of
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope
from bus.security.bearer_tokens import NO_KEYS, KeySetError, SigningKeys, parse_key_set

_log = logging.getLogger(__name__)

UNKNOWN_KEY_PAUSE_S = 10.0
LOOK_SECONDS_MAX = 5.0
_JITTER = 0.2  # keeps several brokers from asking at the same moment


@dataclass(frozen=True, slots=True)
class RefreshTimes:
    """The times of Kafka's sasl.oauthbearer.jwks.endpoint.refresh.ms, .retry.backoff.ms and .retry.backoff.max.ms."""

    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class KeyDirectory:
    """`read`: the document of the provider, in a thread; it raises `OSError`, within a time-out of its own. `start`,
    then `close`, once each. `where`: for the log."""

    def __init__(
        self, read: Callable[[], bytes], where: str, times: RefreshTimes, *, calls: BlockingCalls, tasks: TaskScope
    ) -> None:
        self._read = read
        self._where = where
        self._times = times
        self._calls = calls
        self._tasks = tasks
        self._following: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._looked_s: float | None = None  # the last time that an unknown key caused a refresh
        self._failures = 0  # since the last success
        self._logged_failure = ""
        self.keys: SigningKeys = NO_KEYS

    def start(self) -> None:
        self._following = self._tasks.start(self._follow(), "signing keys")

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def look(self) -> None:
        """Refresh the keys for a token with an unknown key. Returns once the set was read, or could not be read; at
        once if such a token caused a refresh less than `UNKNOWN_KEY_PAUSE_S` ago."""
        now_s = asyncio.get_running_loop().time()
        if self._reading is None:
            if self._looked_s is not None and now_s < self._looked_s + UNKNOWN_KEY_PAUSE_S:
                return
            self._looked_s = now_s
        await self._refresh(LOOK_SECONDS_MAX)

    async def _follow(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        times = self._times
        if not self._failures:
            return times.refresh_ms / 1000
        doubled_ms = times.retry_backoff_ms << min(self._failures - 1, 30)
        backoff_ms = min(doubled_ms, times.retry_backoff_max_ms)
        return backoff_ms / 1000 * (1 - random.random() * _JITTER)

    async def _refresh(self, seconds_max: float | None = None) -> None:
        """Concurrent callers wait for the same reading."""
        if self._reading is None:
            self._reading = self._tasks.start(self._take(), "read signing keys")
        await asyncio.wait([self._reading], timeout=seconds_max)

    async def _take(self) -> None:
        try:
            keys = await self._calls.fetch(self._read_keys)
        except (OSError, KeySetError) as error:
            self._failures += 1
            self._note_failure(str(error))
        else:
            self._note_success(keys)
            self.keys, self._failures = keys, 0
        finally:
            self._reading = None

    def _read_keys(self) -> SigningKeys:
        return parse_key_set(self._read())

    def _note_failure(self, reason: str) -> None:
        """Logs a reason once, until another one comes."""
        if reason == self._logged_failure:
            return
        self._logged_failure = reason
        consequence = (
            f"the {len(self.keys)} read before stay" if len(self.keys) else "no token is accepted until they can"
        )
        _log.warning("the signing keys at %s cannot be read, %s: %s", self._where, consequence, reason)

    def _note_success(self, keys: SigningKeys) -> None:
        if self._logged_failure or keys.by_id.keys() != self.keys.by_id.keys():
            ignored = f", {keys.ignored} others are for other purposes" if keys.ignored else ""
            _log.info("read %s at %s%s", count_of(len(keys), "signing key"), self._where, ignored)
        self._logged_failure = ""
