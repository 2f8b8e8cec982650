"""Records of producer ids and of the names of producers; the promises of ids stand in producer_ids.py.

Each record says what it changes, and what becomes of it in a log that contradicts itself; how a snapshot states them is
below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord, Mending
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.producer_ids import NO_PRODUCER_EPOCH, PRODUCER_EPOCH_MAX, NamedProducer


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated(ClusterRecord):
    """The broker may give the producer ids below `next_producer_id` that no block before had (KIP-730)."""

    broker_id: int
    next_producer_id: int  # > every earlier one: the next block begins here

    def apply(self, draft: ClusterDraft) -> None:
        draft.producers.allocate(self.next_producer_id)


@dataclass(frozen=True, slots=True)
class ProducerNamed(ClusterRecord):
    """The producer of this name has this identity from now on, and every lower epoch of it is fenced."""

    producer_name: str
    producer_id: int  # the same for ever
    producer_epoch: int  # > every earlier one of the name
    last_producer_epoch: int  # the epoch of the caller that requested a higher one; -1 if a new instance came (KIP-360)

    def apply(self, draft: ClusterDraft) -> None:
        name, producers = self.producer_name, draft.producers
        known = producers.find(name)
        used_ms = None if known is None else known.used_ms
        producers.give(NamedProducer(name, self.producer_id, self.producer_epoch, self.last_producer_epoch, used_ms))

    def mend(self, mending: Mending) -> str:
        name, producer_id, epoch = self.producer_name, self.producer_id, self.producer_epoch
        producers = mending.draft.producers
        mending.allocate_to(producer_id)
        if mending.take(self):
            return "taken, with the ids up to it"
        holder = producers.find_id(producer_id)
        if holder is not None and holder.name != name:
            mending.draft.apply(ProducerExpired(holder.name, producer_id))
            return f"the names {holder.name} and {name} get new ids, and id {producer_id} may not write any more"
        before = producers.find(name)
        if before is not None and before.producer_id != producer_id:
            mending.draft.apply(ProducerExpired(name, before.producer_id))
            if mending.take(ProducerNamed(name, producer_id, epoch, NO_PRODUCER_EPOCH)):
                return f"the name has id {producer_id}, and id {before.producer_id} may not write any more"
            return f"the name gets a new id, and {before.producer_id} and {producer_id} may not write any more"
        if before is None:
            return "given up: the id may not write any more"
        # Two instances may have been given one epoch: neither may go on with it.
        next_epoch = max(epoch, before.producer_epoch) + 1
        if next_epoch > PRODUCER_EPOCH_MAX:
            mending.draft.apply(ProducerExpired(name, producer_id))
            return f"the name gets a new id, and id {producer_id} may not write any more"
        mending.draft.apply(ProducerNamed(name, producer_id, next_epoch, NO_PRODUCER_EPOCH))
        return f"epochs of the name below {next_epoch} are fenced"


@dataclass(frozen=True, slots=True)
class ProducerUsed(ClusterRecord):
    """The producer of this name was seen at this time; to be known a while later, not to the second."""

    producer_name: str
    used_ms: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.producers.use(self.producer_name, self.used_ms)


@dataclass(frozen=True, slots=True)
class ProducerExpired(ClusterRecord):
    """The name is forgotten; its id has no owner any more, and may not write."""

    producer_name: str
    producer_id: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.producers.expire(self.producer_name, self.producer_id)

    def mend(self, mending: Mending) -> str:
        mending.allocate_to(self.producer_id)
        mending.take(ProducerIdsRetired(self.producer_id, self.producer_id + 1))
        return f"given up; id {self.producer_id} may not write any more"


@dataclass(frozen=True, slots=True)
class ProducerIdsRetired(ClusterRecord):
    """Ids from `producer_id` on and below `next_producer_id` have no owner any more, and may not write."""

    producer_id: int
    next_producer_id: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.producers.retire(self.producer_id, self.next_producer_id)


def snapshot_producers(state: ClusterState) -> Iterator[ClusterRecord]:
    producers = state.producers
    if producers.next_producer_id:
        yield ProducerIdsAllocated(next(iter(state.brokers), 0), producers.next_producer_id)
    for first, next_id in producers.retired.ranges:
        yield ProducerIdsRetired(first, next_id)
    for named in producers.by_name.values():
        yield ProducerNamed(named.name, named.producer_id, named.producer_epoch, named.last_producer_epoch)
        if named.used_ms is not None:
            yield ProducerUsed(named.name, named.used_ms)
