"""Which names of producers have not been used for so long that they are forgotten (transactional.id.expiration.ms).

What is known of a name's use is what this life of the broker has seen, and what the log says of earlier ones: a name
that is in use is said to be so once in a while, so what the log says is too old by `told_every_ms` at most. Guards two
promises: a name goes only when it was not used for the whole time, and its id never writes again once it went. A name
of which nothing was ever said counts as used when it is first looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.cluster_metadata.cluster import ClusterState
from bus.cluster_metadata.cluster_records import ClusterRecord, ProducerExpired, ProducerUsed
from bus.cluster_metadata.producer_ids import NamedProducer
from bus.model import Step

# What is in use is said this often within the time after which it would expire.
_TOLD_SHARE = 8
# One decision gives so many records, and leaves the rest to the next.
RECORDS_MAX = 10_000


def decide_expire_producers(
    state: ClusterState,
    *,
    seen_ms: Mapping[int, int],
    now_ms: int,
    expiration_ms: int,
    names: Iterable[str] | None = None,
) -> Step[ClusterRecord, int]:
    """The number of names that expire. `seen_ms`: producer id -> when this broker last saw the producer. `names`: those
    to look at, None: all."""
    told_every_ms = expiration_ms // _TOLD_SHARE
    expired: list[ClusterRecord] = []
    used: list[ClusterRecord] = []
    by_name = state.producers.by_name
    for named in by_name.values() if names is None else filter(None, map(by_name.get, names)):
        if len(expired) + len(used) >= RECORDS_MAX:
            break
        used_ms = _last_used_ms(named, seen_ms, now_ms)
        if used_ms + expiration_ms + told_every_ms <= now_ms:
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
