"""Decisions on producer ids and epochs, and the records that carry them out.

Decides on blocks of ids and on the identities of named producers; which id of a block an unnamed producer gets is no
decision of the cluster's. Guards one promise: two instances of one name never have the same epoch, unless they ask to
keep it, since they number their epochs themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import ProducerExpired, ProducerIdsAllocated, ProducerNamed, ProducerUsed
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.producer_ids import (
    NO_PRODUCER_EPOCH,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BLOCK_SIZE,
    NamedProducer,
    ProducerIdentity,
    check_producer_name,
    refuse_epoch,
)
from bus.errors import ErrorCode, Refused
from bus.model import Step

# Shares of the time after which a name expires.
_REPORTED_SHARE = 16  # names in use are reported this often
_LOOK_SHARE = 64
_GRACE_SHARE = 8  # more than the sum of all delays until a use is known
# Kafka's transaction.remove.expired.transaction.cleanup.interval.ms
_LOOK_INTERVAL_MS_MAX = 3_600_000
# The number of records of one decision; the rest is left to the next.
RECORDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class InitProducer:
    """An instance of a named producer wants an identity; `current` is the one that it has. With `keeps_epoch` it only
    asks which one the name has."""

    name: str
    current: ProducerIdentity | None = None
    keeps_epoch: bool = False


IdentityStep = Step[ClusterRecord, ProducerIdentity | Refused]


def decide_allocate_producer_ids(state: ClusterState, *, broker_id: int) -> Step[ClusterRecord, range]:
    """The broker's next block of ids."""
    first = state.producers.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    return Step(block, (ProducerIdsAllocated(broker_id, block.stop),))


def check_init_producer(command: InitProducer) -> Refused | None:
    """Refused: INVALID_REQUEST, whatever the state."""
    refused = check_producer_name(command.name)
    if refused is not None or command.current is None:
        return refused
    if command.keeps_epoch:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected no producer id of who keeps the epoch of a name, found {command.current.producer_id}",
        )
    if command.current.producer_id < 0 or not 0 <= command.current.producer_epoch <= PRODUCER_EPOCH_MAX:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected a producer id from 0 on and an epoch from 0 to {PRODUCER_EPOCH_MAX}, "
            f"found {command.current.producer_id} and {command.current.producer_epoch}",
        )
    return None


def decide_init_producer(state: ClusterState, command: InitProducer, *, new_producer_id: int | None) -> IdentityStep:
    """Give the name's id with an epoch that was never given. `new_producer_id`, never given before, is for a new name,
    and for a name that has used its last epoch: it continues with the new id at epoch 0, and the old id is fenced for
    good.

    A caller with the name's current identity gets the next epoch. If its answer was lost and it asks again with the
    same identity, it gets the same answer (KIP-360). A caller that keeps the epoch gets the name's identity as it is,
    and fences no instance. Refused: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING (the name has another id, or none
    yet), PRODUCER_FENCED (another instance has come), INVALID_PRODUCER_EPOCH (an epoch that was never given).
    """
    refused = check_init_producer(command)
    if refused is not None:
        return Step(refused)
    named = state.producers.by_name.get(command.name)
    if named is None:
        return _name_producer(command, new_producer_id)
    if command.keeps_epoch:
        return Step(named.identity)
    if command.current is None:
        return _raise_epoch(named, NO_PRODUCER_EPOCH, new_producer_id)
    if command.current.producer_id != named.producer_id:
        return _unknown_id(command, f"id {named.producer_id}")
    if command.current.producer_epoch == named.producer_epoch:
        return _raise_epoch(named, named.producer_epoch, new_producer_id)
    if command.current.producer_epoch == named.last_producer_epoch:
        return Step(named.identity)
    return Step(refuse_epoch(named, command.current.producer_epoch))


def _name_producer(command: InitProducer, new_producer_id: int | None) -> IdentityStep:
    if command.current is not None:
        return _unknown_id(command, "no id yet")
    assert new_producer_id is not None, f"expected a new producer id for the new name {command.name}"
    named = ProducerNamed(command.name, new_producer_id, 0, NO_PRODUCER_EPOCH)
    return Step(ProducerIdentity(new_producer_id, 0), (named,))


def _raise_epoch(named: NamedProducer, last_producer_epoch: int, new_producer_id: int | None) -> IdentityStep:
    epoch = named.producer_epoch + 1
    if epoch <= PRODUCER_EPOCH_MAX:
        record = ProducerNamed(named.name, named.producer_id, epoch, last_producer_epoch)
        return Step(ProducerIdentity(named.producer_id, epoch), (record,))
    assert new_producer_id is not None, f"expected a new producer id for {named.name}, which has had its last epoch"
    expired = ProducerExpired(named.name, named.producer_id)
    renamed = ProducerNamed(named.name, new_producer_id, 0, NO_PRODUCER_EPOCH)
    return Step(ProducerIdentity(new_producer_id, 0), (expired, renamed))


def needs_new_id(state: ClusterState, command: InitProducer) -> bool:
    """True if `decide_init_producer` may need a producer id that was never given."""
    named = state.producers.by_name.get(command.name)
    if named is None:
        return command.current is None
    return named.producer_epoch >= PRODUCER_EPOCH_MAX and not command.keeps_epoch


def _unknown_id(command: InitProducer, expected: str) -> IdentityStep:
    assert command.current is not None
    return Step(
        Refused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"producer {command.name} has {expected}, found id {command.current.producer_id}",
        )
    )


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
    """Forget the names of producers that no broker has used for `expiration_ms` (transactional.id.expiration.ms). The
    response is the number of names that expire. `seen_ms`: producer id -> when the producer was last known to be in
    use. `names`: those to look at, None: all.

    This controller knows the uses that it has seen, those that the other brokers have reported, and those that the log
    records from before its election. The log's uses are too old by up to a sixteenth of the time and by the two
    intervals in which brokers report and the controller looks (`look_interval_ms`), so a name is forgotten an eighth of
    the time later. Guards two promises: a name is forgotten only if no broker used it for the whole time, and its id
    never writes again afterwards. A name without any known use counts as used when it is first looked at."""
    reported_every_ms = expiration_ms // _REPORTED_SHARE
    expired: list[ClusterRecord] = []
    used: list[ClusterRecord] = []
    by_name = state.producers.by_name
    for named in by_name.values() if names is None else filter(None, map(by_name.get, names)):
        if len(expired) + len(used) >= RECORDS_MAX:
            break
        used_ms = _last_used_ms(named, seen_ms, now_ms)
        if used_ms + expiration_ms + expiration_ms // _GRACE_SHARE <= now_ms:
            expired.append(ProducerExpired(named.name, named.producer_id))
        elif named.used_ms is None or used_ms - named.used_ms > reported_every_ms:
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
