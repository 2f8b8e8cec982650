"""Whose producer ids there are: which were given to brokers, and which belong to a name at which epoch.

Guards two promises: no producer id is given twice, and of a named producer no epoch counts any more that is below the
highest one that was ever given. `apply_producer` is the only way in which this changes, live and while loading. Ids are
given to brokers in blocks (KIP-730), so that a producer without a name costs no commit; what a broker had left of its
block when it ended is lost, and nobody misses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.topics.cluster_records import ProducerIdsAllocated, ProducerNamed
from bus.topics.growing_map import GrowingMap

PRODUCER_ID_BLOCK_SIZE = 1_000
PRODUCER_EPOCH_MAX = 2**15 - 1
NO_PRODUCER_EPOCH = -1
PRODUCER_NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class NamedProducer:
    name: str
    producer_id: int
    producer_epoch: int  # the last one that was given; lower ones are fenced
    last_producer_epoch: int  # of the caller that the current one was given to; -1 if that was a new instance

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """Invariant: every id of a name is below `next_producer_id`, and no two names have one id."""

    next_producer_id: int = 0  # no broker was ever given this id or a higher one
    by_name: GrowingMap[str, NamedProducer] = field(default_factory=GrowingMap)
    by_id: GrowingMap[int, NamedProducer] = field(default_factory=GrowingMap)


def apply_producer(producers: ProducerIds, record: ProducerIdsAllocated | ProducerNamed) -> ProducerIds:
    """The only way in which ids and names change, live and while loading."""
    if isinstance(record, ProducerIdsAllocated):
        before = producers.next_producer_id
        assert record.next_producer_id > before, f"next producer id went from {before} to {record.next_producer_id}"
        return replace(producers, next_producer_id=record.next_producer_id)
    _check_named(producers, record)
    named = NamedProducer(record.producer_name, record.producer_id, record.producer_epoch, record.last_producer_epoch)
    return replace(
        producers,
        by_name=producers.by_name.put(named.name, named),
        by_id=producers.by_id.put(named.producer_id, named),
    )


def _check_named(producers: ProducerIds, record: ProducerNamed) -> None:
    name, producer_id, epoch = record.producer_name, record.producer_id, record.producer_epoch
    assert producer_id < producers.next_producer_id, (
        f"expected a producer id below {producers.next_producer_id} for {name}, found {producer_id}"
    )
    holder = producers.by_id.find(producer_id)
    assert holder is None or holder.name == name, f"producer id {producer_id} of {name} belongs to {holder}"
    before = producers.by_name.find(name)
    if before is not None:
        assert producer_id == before.producer_id, (
            f"producer id of {name} went from {before.producer_id} to {producer_id}"
        )
        assert epoch > before.producer_epoch, f"epoch of {name} went from {before.producer_epoch} to {epoch}"
    assert record.last_producer_epoch < epoch, (
        f"expected a last epoch of {name} below {epoch}, found {record.last_producer_epoch}"
    )


def check_producer_name(name: str) -> Refused | None:
    """None if a producer may have this name: 1 to 249 of the characters a-z A-Z 0-9 . _ -"""
    if not 1 <= len(name) <= PRODUCER_NAME_LENGTH_MAX:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected a producer name of 1 to {PRODUCER_NAME_LENGTH_MAX} characters, found {len(name)}",
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected a producer name of a-z, A-Z, 0-9, '.', '_' and '-', found {name!r}"
        )
    return None


def check_producer(producers: ProducerIds, stamp: ProducerStamp) -> Refused | None:
    """May this identity write anywhere at all? One look-up, whatever the number of producers.

    Refused: INVALID_PRODUCER_ID_MAPPING (an id that nobody was ever given), PRODUCER_FENCED (a name whose next instance
    has come). A producer without a name raises its epoch by itself, and so may one that keeps the epoch of its name;
    what that must not do is up to each partition.
    """
    named = producers.by_id.find(stamp.producer_id)
    if named is None:
        if stamp.producer_id < producers.next_producer_id:
            return None
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"expected a producer id by InitProducerId, all of which are below {producers.next_producer_id}, "
            f"found {stamp.producer_id}",
        )
    return None if stamp.producer_epoch >= named.producer_epoch else refuse_epoch(named, stamp.producer_epoch)


def refuse_epoch(named: NamedProducer, found: int) -> Refused:
    """Why a caller with another epoch than the current one is not, or not yet, the producer of this name."""
    who = f"producer {named.name} (id {named.producer_id})"
    if found < named.producer_epoch:
        return Refused(
            ErrorCode.PRODUCER_FENCED,
            f"{who}: epoch {found} was fenced, a later instance of this name has epoch {named.producer_epoch}",
        )
    return Refused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{who}: expected epoch {named.producer_epoch}, found {found}, which was never given",
    )
