"""Where a consumer reads a partition: at its leader, or at the replica that the leader has named (KIP-392).

Pure: what happens comes in, and who is to be asked comes out. Guards two promises: whatever a replica answers but
records, the leader is asked next; and a replica that fails again and again is asked ever more rarely, as a leader that
does not know of it goes on naming it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_SHUN_MS_MIN = 1_000
_SHUN_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """`broker_id` None: the leader is asked. `shunned_id` is a replica that failed, `failures` times in a row."""

    broker_id: int | None = None
    until_ms: float = 0.0
    shunned_id: int | None = None
    shunned_until_ms: float = 0.0
    failures: int = 0

    def at(self, now_ms: float) -> int | None:
        """Whom to ask now; None: the leader, also once the time of the replica is over, to be told of one anew."""
        return self.broker_id if now_ms < self.until_ms else None


AT_LEADER = ReadReplica()


def note_named(state: ReadReplica, broker_id: int, now_ms: float, *, age_ms_max: float) -> ReadReplica:
    """The leader has named that replica, which is asked for `age_ms_max` unless it failed a moment ago."""
    if broker_id == state.shunned_id and now_ms < state.shunned_until_ms:
        return state
    return replace(state, broker_id=broker_id, until_ms=now_ms + age_ms_max)


def note_served(state: ReadReplica) -> ReadReplica:
    """The replica has given records."""
    if state.failures:
        return replace(state, shunned_id=None, shunned_until_ms=0.0, failures=0)
    return state


def note_failed(state: ReadReplica, broker_id: int, now_ms: float) -> ReadReplica:
    """That replica has refused, or cannot be reached."""
    failures = state.failures + 1 if broker_id == state.shunned_id else 1
    pause_ms = min(_SHUN_MS_MIN * 2 ** min(failures - 1, 10), _SHUN_MS_MAX)
    return ReadReplica(shunned_id=broker_id, shunned_until_ms=now_ms + pause_ms, failures=failures)
