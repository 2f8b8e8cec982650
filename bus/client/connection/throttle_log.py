"""Logs a warning when brokers throttle a client for a quota, which is no error and otherwise shows in its metrics only.
At most one line a minute, as every answer may have a throttle time."""

from __future__ import annotations

from bus.reentry import logger_of

logger = logger_of(__name__)

LOGGED_MS_MIN = 1_000  # a client that is just at its quota waits for less all the time
_PAUSE_MS = 60_000.0


class ThrottleLog:
    """Of one client, for one of its quotas."""

    def __init__(self, client_id: str, quota: str) -> None:
        self._client_id = client_id
        self._quota = quota
        self._next_at_ms = float("-inf")

    def note(self, throttle_ms: int, address: str, now_ms: float) -> None:
        """The broker at `address` takes no request for `throttle_ms`."""
        if throttle_ms < LOGGED_MS_MIN or now_ms < self._next_at_ms:
            return
        self._next_at_ms = now_ms + _PAUSE_MS
        logger.warning(
            "%s is throttled by the broker at %s for %d ms by the quota %s (logged once a minute at most); "
            "bus quotas usage shows the quota and the rate",
            self._client_id,
            address,
            throttle_ms,
            self._quota,
        )
