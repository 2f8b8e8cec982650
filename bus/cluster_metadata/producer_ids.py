"""Producer ids: the blocks given to brokers, and the ids and epochs of named producers.

Guards two promises: no producer id is given twice, and of a named producer no epoch counts any more that is below the
highest one that was ever given. A name that expired, or has used up its epochs, leaves its id behind: that is retired,
and may not write any more. Ids are given to brokers in blocks (KIP-730), so that a producer without a name costs no
commit; what a broker had left of its block when it ended is lost, and is not missed.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.persistent_map import PersistentMap

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
    last_producer_epoch: int  # the epoch of the caller that the current one was given to; -1 if that was a new instance
    used_ms: int | None = None  # when it was last said to be in use; None: nothing was said yet

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


@dataclass(frozen=True, slots=True)
class RetiredIds:
    """Ids whose names are gone, as ranges: names that come and go together cost one range."""

    ranges: tuple[tuple[int, int], ...] = ()  # [first, next), ascending, with a gap between any two

    def __contains__(self, producer_id: int) -> bool:
        place = bisect.bisect_right(self.ranges, producer_id, key=lambda one: one[0]) - 1
        return place >= 0 and producer_id < self.ranges[place][1]

    def with_ranges(self, added: Iterable[tuple[int, int]]) -> RetiredIds:
        merged: list[tuple[int, int]] = []
        for first, next_id in sorted((*self.ranges, *added)):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], next_id))
            else:
                merged.append((first, next_id))
        return RetiredIds(tuple(merged))


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """Invariant: every id of a name is below `next_producer_id`, no two names have one id, and none is retired."""

    next_producer_id: int = 0  # no broker was ever given this id or a higher one
    by_name: PersistentMap[str, NamedProducer] = field(default_factory=PersistentMap)
    by_id: PersistentMap[int, NamedProducer] = field(default_factory=PersistentMap)
    retired: RetiredIds = field(default_factory=RetiredIds)


class ProducerIdsDraft:
    """Producer ids while records are applied to them: changes any number of times, then `finish`."""

    def __init__(self, before: ProducerIds) -> None:
        self._before = before
        self._next_producer_id = before.next_producer_id
        self._by_name: dict[str, NamedProducer | None] = {}  # only changes
        self._by_id: dict[int, NamedProducer | None] = {}
        self._retired: list[tuple[int, int]] = []
        self._retired_ids: set[int] = set()  # retired one by one

    def find(self, name: str) -> NamedProducer | None:
        return self._by_name[name] if name in self._by_name else self._before.by_name.get(name)

    def find_id(self, producer_id: int) -> NamedProducer | None:
        return self._by_id[producer_id] if producer_id in self._by_id else self._before.by_id.get(producer_id)

    @property
    def next_producer_id(self) -> int:
        return self._next_producer_id

    def allocate(self, next_producer_id: int) -> None:
        before = self._next_producer_id
        assert next_producer_id > before, f"next producer id went from {before} to {next_producer_id}"
        self._next_producer_id = next_producer_id

    def give(self, named: NamedProducer) -> None:
        self._check_named(named)
        self._put(named)

    def use(self, name: str, used_ms: int) -> None:
        self._put(replace(self._known(name), used_ms=used_ms))

    def expire(self, name: str, producer_id: int) -> None:
        known = self._known(name)
        assert known.producer_id == producer_id, (
            f"expected producer id {known.producer_id} of {name}, found {producer_id}"
        )
        self._by_name[name] = self._by_id[producer_id] = None
        self._retired.append((producer_id, producer_id + 1))
        self._retired_ids.add(producer_id)

    def retire(self, first: int, next_producer_id: int) -> None:
        assert first < next_producer_id <= self._next_producer_id, (
            f"expected producer ids below {self._next_producer_id}, found {first} to {next_producer_id - 1}"
        )
        self._retired.append((first, next_producer_id))

    def finish(self) -> ProducerIds:
        before = self._before
        return ProducerIds(
            self._next_producer_id,
            before.by_name.changed(self._by_name),
            before.by_id.changed(self._by_id),
            before.retired.with_ranges(self._retired) if self._retired else before.retired,
        )

    def _known(self, name: str) -> NamedProducer:
        known = self.find(name)
        assert known is not None, f"expected a producer {name}, found none"
        return known

    def _put(self, named: NamedProducer) -> None:
        self._by_name[named.name] = self._by_id[named.producer_id] = named

    def _check_named(self, named: NamedProducer) -> None:
        name, producer_id, epoch = named.name, named.producer_id, named.producer_epoch
        assert producer_id < self._next_producer_id, (
            f"expected a producer id below {self._next_producer_id} for {name}, found {producer_id}"
        )
        holder = self.find_id(producer_id)
        assert holder is None or holder.name == name, f"producer id {producer_id} of {name} belongs to {holder}"
        is_retired = producer_id in self._retired_ids or producer_id in self._before.retired
        assert not is_retired, f"producer id {producer_id} of {name} was retired"
        before = self.find(name)
        if before is not None:
            assert producer_id == before.producer_id, (
                f"producer id of {name} went from {before.producer_id} to {producer_id}"
            )
            assert epoch > before.producer_epoch, f"epoch of {name} went from {before.producer_epoch} to {epoch}"
        assert named.last_producer_epoch < epoch, (
            f"expected a last epoch of {name} below {epoch}, found {named.last_producer_epoch}"
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

    Refused: INVALID_PRODUCER_ID_MAPPING (an id that was never given), PRODUCER_FENCED (a name whose next instance
    has come, or which has expired). A producer without a name raises its epoch by itself, and so may one that keeps the
    epoch of its name; what that must not do is up to each partition.
    """
    producer_id = stamp.producer_id
    named = producers.by_id.get(producer_id)
    if named is not None:
        return None if stamp.producer_epoch >= named.producer_epoch else refuse_epoch(named, stamp.producer_epoch)
    if producer_id >= producers.next_producer_id:
        return Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"expected a producer id by InitProducerId, all of which are below {producers.next_producer_id}, "
            f"found {producer_id}",
        )
    if producers.retired.ranges and producer_id in producers.retired:
        return Refused(
            ErrorCode.PRODUCER_FENCED,
            f"producer id {producer_id} was fenced: its name has another id, or expired as it was not used; "
            f"begin again with InitProducerId",
        )
    return None


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
