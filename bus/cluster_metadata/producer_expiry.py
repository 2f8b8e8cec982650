"""Which names of producers have not been used for so long that they are forgotten (transactional.id.expiration.ms).

What is known of a name's use is what this controller has seen and was told by the other brokers, and what the log says
of the time before it was elected: a name that is in use is said to be so once in a while. What the log says is too old
by a sixteenth of the time, and by the two intervals in which brokers tell of uses and the controller looks through them
(`look_interval_ms`); so a name goes only an eighth later. Guards two promises: a name goes only when it was not used
for the whole time at any broker, and its id never writes again once it went. A name of which nothing was ever said
counts as used when it is first looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import ProducerExpired, ProducerUsed
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.producer_ids import NamedProducer
from bus.model import Step

# Shares of the time after which a name expires.
_TOLD_SHARE = 16  # what is in use is said so often
_LOOK_SHARE = 64
_GRACE_SHARE = 8  # > the sum of what makes a use known too late
# As Kafka's transaction.remove.expired.transaction.cleanup.interval.ms.
_LOOK_INTERVAL_MS_MAX = 3_600_000
# One decision gives so many records, and leaves the rest to the next.
RECORDS_MAX = 10_000


def look_interval_ms(expiration_ms: int) -> int:
    """How often the controller looks for names that have expired, and brokers tell it of uses."""
    return min(_LOOK_INTERVAL_MS_MAX, expiration_ms // _LOOK_SHARE)


def decide_expire_producers(
    state: ClusterState,
    *,
    seen_ms: Mapping[int, int],
    now_ms: int,
    expiration_ms: int,
    names: Iterable[str] | None = None,
) -> Step[ClusterRecord, int]:
    """The number of names that expire. `seen_ms`: producer id -> when the producer was last known to be in use.
    `names`: those to look at, None: all."""
    told_every_ms = expiration_ms // _TOLD_SHARE
    expired: list[ClusterRecord] = []
    used: list[ClusterRecord] = []
    by_name = state.producers.by_name
    for named in by_name.values() if names is None else filter(None, map(by_name.get, names)):
        if len(expired) + len(used) >= RECORDS_MAX:
            break
        used_ms = _last_used_ms(named, seen_ms, now_ms)
        if used_ms + expiration_ms + expiration_ms // _GRACE_SHARE <= now_ms:
            expired.append(ProducerExpired(named.name, named.producer_id))
        elif named.used_ms is None or used_ms - named.used_ms > told_every_ms:
            used.append(ProducerUsed(named.name, max(0, used_ms)))
    return Step(len(expired), (*expired, *used))


def names_of(records: Iterable[ClusterRecord]) -> list[str]:
    """That a decision is about."""
    return [record.producer_name for record in records if isinstance(record, (ProducerExpired, ProducerUsed))]


def _last_used_ms(named: NamedProducer, seen_ms: Mapping[int, int], now_ms: int) -> int:
    seen = seen_ms.get(named.producer_id)
    if named.used_ms is None:
        return now_ms if seen is None else seen
    return named.used_ms if seen is None else max(named.used_ms, seen)
