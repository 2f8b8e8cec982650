"""Identities of producers: the ids and names that they get, which of them are fenced, and when a name is forgotten.

Guards two promises. An identity is given once, and only when the metadata log says so. And a name that is in use is
known to be before the controller's sweep decides which ones are forgotten (transactional.id.expiration.ms), however
long ago it was given its identity: uses are gathered, here and from the heartbeats of other brokers, and not timed, so
one counts as of the next sweep, which is later than it was. Time is that of retention: a wall clock that jumps ahead
forgets no name at once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import NamedTuple

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.producer_decisions import (
    RECORDS_MAX,
    InitProducer,
    check_init_producer,
    decide_allocate_producer_ids,
    decide_expire_producers,
    decide_init_producer,
    look_interval_ms,
    names_of,
    needs_new_id,
)
from bus.cluster_metadata.producer_ids import ProducerIdentity, check_producer
from bus.errors import ErrorCode, NotController, Refused
from bus.model import ProducerStamp, Step
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

# The number of ids in one heartbeat; the others go with the next ones.
REPORTED_MAX = 1_000


class ProducerUses:
    """The named producers that write at this broker, and the part that it has not reported to the controller yet.

    Names expire by their last use at any broker, so each broker reports uses to the controller with its heartbeats.
    Guards two promises: a use is reported within about one interval, and again to the next controller if the former one
    may not have written it to the metadata; and an id is reported at most once in an interval, however often it is
    used. Bounded by the number of names.
    """

    def __init__(self, interval_ms: float) -> None:
        """`interval_ms`: the interval in which a controller looks through the reported uses."""
        self._interval_ms = interval_ms
        self._began_ms = 0.0
        self._used: set[int] = set()  # used in this interval
        self._due: set[int] = set()  # used in an earlier one, and not told yet
        self._reported: set[int] = set()  # reported in this interval
        self._reported_before: set[int] = set()  # reported in the interval before
        self._controller: Hashable = None

    def note(self, producer_id: int) -> None:
        """Note a batch of a named producer."""
        self._used.add(producer_id)

    def find_due(self, controller: Hashable, now_ms: float) -> list[int]:
        """Return the ids to report to this controller next, at most REPORTED_MAX; the same ids again until
        `note_reported`."""
        if controller != self._controller:
            self._due |= self._reported | self._reported_before
            self._reported, self._reported_before = set(), set()
            self._controller = controller
        if not self._due and now_ms - self._began_ms >= self._interval_ms:
            self._began_ms = now_ms
            self._due, self._used = self._used, set()
            self._reported, self._reported_before = set(), self._reported
        return list(itertools.islice(self._due, REPORTED_MAX))

    def note_reported(self, producer_ids: Collection[int]) -> None:
        self._due.difference_update(producer_ids)
        self._reported.update(producer_ids)

    def take_all(self) -> set[int]:
        """Take everything that was used here or reported to this broker since the last call, for the controller itself.
        Includes what this broker lately reported to another controller."""
        uses = self._used | self._due | self._reported | self._reported_before
        self._used, self._due, self._reported, self._reported_before = set(), set(), set(), set()
        return uses


# The next block is asked for when a tenth of this one is left, as Kafka does.
_PREFETCH_SHARE = 10


class ProducerIdPool:
    """The producer ids that this broker may give: the rest of its block, and the next block, requested early.
    `allocate` makes the next block durable; its blocks never overlap and always rise. `epoch` is the epoch of the
    current controller.

    Guards two promises: an id is given once, and ids rise, whichever controller gives them. A block is durable before
    its first id is given. A broker that ends loses the rest of its block, and so does a controller that is elected
    again after another one gave larger ids."""

    def __init__(
        self, allocate: Callable[[], Awaitable[range | Refused]], tasks: TaskScope, *, epoch: Callable[[], int]
    ) -> None:
        self._allocate = allocate
        self._epoch = epoch
        self._block_epoch = -1  # the epoch of `_block` and `_next_block`
        self._tasks = tasks
        self._block = range(0)
        self._next_block: range | None = None
        self._prefetch_at = 0
        self._fetch: asyncio.Task[Refused | None] | None = None

    async def take(self) -> int | Refused:
        """An id that was never given. Waits only if the block is used up; cancelling it costs no id."""
        while True:
            self._forget_earlier()
            if self._block:
                break
            if self._next_block is None:
                fetch = self._start_fetch()
                await asyncio.wait([fetch])  # a caller may be cancelled; the block is allocated all the same
                if (refused := fetch.result()) is not None:
                    return refused
                continue  # others waited too, and may have used it up
            self._block, self._next_block = self._next_block, None
            self._prefetch_at = len(self._block) // _PREFETCH_SHARE
        producer_id, self._block = self._block[0], self._block[1:]
        if len(self._block) <= self._prefetch_at and self._next_block is None:
            self._start_fetch()
        return producer_id

    def _forget_earlier(self) -> None:
        """Under an earlier epoch: the controllers since may have given larger ids."""
        epoch = self._epoch()
        if epoch != self._block_epoch:
            self._block, self._next_block, self._block_epoch = range(0), None, epoch

    def _start_fetch(self) -> asyncio.Task[Refused | None]:
        if self._fetch is None:
            self._fetch = self._tasks.start(self._fetch_block(), "producer-ids")
        return self._fetch

    async def _fetch_block(self) -> Refused | None:
        try:
            epoch = self._epoch()
            block = await self._allocate()
            if isinstance(block, Refused):
                return block
            self._forget_earlier()
            if epoch == self._block_epoch:
                self._next_block = block
            return None
        finally:
            self._fetch = None


_LOOK_INTERVAL_S_MIN = 1.0
_INSTANCE_ID_BYTES = 16
_INSTANCES_MAX = 10_000  # a repeat comes within seconds of the request


class _Instance(NamedTuple):
    instance_id: bytes
    identity: ProducerIdentity  # that was decided for it; committed if the name has it
    # the epoch of that decision: under another one the same producer epoch may have gone to another instance
    controller_epoch: int


class Producers:
    """`start`, then `stop`. `now_ms` is the time of retention; `wait_until_followed` waits until all brokers know the
    metadata up to an offset, or raises `NotController`. `uses` has those of this broker and, on the controller, those
    that it was told of."""

    def __init__(
        self,
        metadata: MetadataLog,
        uses: ProducerUses,
        *,
        broker_id: int,
        expiration_ms: int,
        now_ms: Callable[[], int],
        calls: BlockingCalls,
        tasks: TaskScope,
        wait_until_followed: Callable[[int], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._wait_until_followed = wait_until_followed
        self._broker_id = broker_id
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms
        self._calls = calls
        self._tasks = tasks
        self._ids = ProducerIdPool(self._allocate, tasks, epoch=lambda: metadata.leader_epoch)
        self._uses = uses
        self._seen_ms: dict[int, int] = {}
        self._instances: OrderedDict[str, _Instance] = OrderedDict()  # the last answers by name
        self._swept_epoch = -1  # the controller epoch at the last look
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeping = self._tasks.start(self._sweep_now_and_then(), "producer-names")

    def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    # ------------------------------------------------------------------ identities

    async def init(
        self,
        name: str | None,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        keeps_epoch: bool = False,
        instance_id: bytes = b"",
    ) -> ProducerIdentity | Refused:
        """Without a name: an id that no producer ever had, at epoch 0, and only one in a thousand costs a commit. With
        it: that name's id and an epoch that it never had, committed before the answer; then every lower epoch is
        fenced.

        `producer_id` and `producer_epoch` are those of a caller that has the name's identity. One that `keeps_epoch`
        gets the identity as it is, and no epoch is fenced. A caller without an identity that repeats its request with
        the same `instance_id` (16 bytes) gets the same answer for as long as the name has that identity and this
        controller remembers the instance: it remembers those of 10,000 names, in memory.

        Refused as `decide_init_producer` says, or INVALID_REQUEST (an identity, or an epoch to keep, without a name; an
        `instance_id` of another length). Raises `NotController`.
        """
        self._metadata.check_is_controller()
        current = None if producer_id is None else ProducerIdentity(producer_id, producer_epoch or 0)
        if name is None:
            if current is not None:
                return Refused(
                    ErrorCode.INVALID_REQUEST, f"expected a producer id with a name only, found {producer_id} without"
                )
            if keeps_epoch:
                return Refused(ErrorCode.INVALID_REQUEST, "expected a name whose epoch is to be kept, found none")
            unnamed = await self._ids.take()
            return unnamed if isinstance(unnamed, Refused) else ProducerIdentity(unnamed, 0)
        command = InitProducer(name, current, keeps_epoch)
        refused = check_init_producer(command) or _check_instance_id(instance_id)
        if refused is not None:
            return refused
        new_id: int | None = None
        while True:
            if needs_new_id(self._metadata.cluster, command):
                taken = await self._ids.take()
                if isinstance(taken, Refused):
                    return taken
                new_id = taken
            (answer,) = await self._metadata.change(
                [functools.partial(self._decide_init, command=command, new_id=new_id, instance_id=instance_id)]
            )
            if isinstance(answer, ProducerIdentity):
                self._uses.note(answer.producer_id)
                await self._wait_until_followed(self._metadata.applied_offset)  # every broker fences lower epochs
            if answer is not None:  # else the name has come to need a new id meanwhile
                return answer

    def _decide_init(
        self, state: ClusterState, command: InitProducer, new_id: int | None, instance_id: bytes
    ) -> Step[ClusterRecord, ProducerIdentity | Refused | None]:
        if new_id is None and needs_new_id(state, command):
            return Step(None)
        is_first = bool(instance_id) and command.current is None and not command.keeps_epoch
        named = state.producers.by_name.get(command.name)
        if is_first and named is not None:
            known = _Instance(instance_id, named.identity, self._metadata.leader_epoch)
            if self._instances.get(command.name) == known:
                return Step(named.identity)
        step = decide_init_producer(state, command, new_producer_id=new_id)
        if step.records:
            self._instances.pop(command.name, None)
        if is_first and isinstance(step.response, ProducerIdentity):
            # Before the commit: a repeat may be decided next. If the commit fails, the name does not have the identity.
            self._instances[command.name] = _Instance(instance_id, step.response, self._metadata.leader_epoch)
            if len(self._instances) > _INSTANCES_MAX:
                self._instances.popitem(last=False)
        return step

    def check(self, stamp: ProducerStamp) -> Refused | None:
        """Why nothing of this identity may be appended here; None if it may be. For every batch: one look-up. Where
        another broker may have given the id, one that this broker does not know of may be known soon."""
        producers = self._metadata.cluster.producers
        if producers.by_id.get(stamp.producer_id) is not None:
            self._uses.note(stamp.producer_id)
        refused = check_producer(producers, stamp)
        is_alone = self._metadata.is_leading and self._metadata.cluster.is_alone(self._broker_id)
        if refused is None or refused.code is not ErrorCode.INVALID_PRODUCER_ID_MAPPING or is_alone:
            return refused
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, refused.message)

    async def _allocate(self) -> range | Refused:
        decide = functools.partial(decide_allocate_producer_ids, broker_id=self._broker_id)
        try:
            (block,) = await self._metadata.change([decide])
            if not isinstance(block, Refused):  # a broker that does not know of the block refuses its ids
                await self._wait_until_followed(self._metadata.applied_offset)
        except NotController as error:
            return Refused(ErrorCode.NOT_CONTROLLER, str(error))
        return block

    # ------------------------------------------------------------------ names that are no longer used

    async def _sweep_now_and_then(self) -> None:
        interval_s = max(_LOOK_INTERVAL_S_MIN, look_interval_ms(self._expiration_ms) / 1000)
        while True:
            await asyncio.sleep(interval_s)
            try:
                if self._is_informed():
                    await self.sweep()
            except NotController:
                continue  # the next one sweeps
            except Exception:
                _log.exception("names of producers could not be looked through; the next time will do it")

    def _is_informed(self) -> bool:
        """True once in each interval. In the first interval under a controller epoch, other brokers report what they
        reported to the controller before."""
        epoch, before = self._metadata.leader_epoch, self._swept_epoch
        self._swept_epoch = epoch if self._metadata.is_leading else -1
        return self._swept_epoch == before or self._metadata.cluster.is_alone(self._broker_id)

    async def sweep(self) -> int:
        """How many names were forgotten. None, unless this broker is the controller."""
        expired_count = 0
        while self._metadata.is_leading:
            self._note_seen()
            look = functools.partial(self._decide_expiry, self._metadata.cluster, seen_ms=dict(self._seen_ms))
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
                break
        return expired_count

    def _decide_again(self, state: ClusterState, names: list[str]) -> Step[ClusterRecord, int | Refused]:
        """Decide again with the names seen up to this moment."""
        self._note_seen()
        step = self._decide_expiry(state, seen_ms=self._seen_ms, names=names)
        return Step(step.response, step.records)

    def _decide_expiry(
        self, state: ClusterState, *, seen_ms: dict[int, int], names: list[str] | None = None
    ) -> Step[ClusterRecord, int]:
        return decide_expire_producers(
            state, seen_ms=seen_ms, now_ms=self._now_ms(), expiration_ms=self._expiration_ms, names=names
        )

    def _note_seen(self) -> None:
        now_ms = self._now_ms()
        self._seen_ms.update(dict.fromkeys(self._uses.take_all(), now_ms))
        known = self._metadata.cluster.producers.by_id
        if len(self._seen_ms) > 2 * len(known) + RECORDS_MAX:
            self._seen_ms = {key: ms for key, ms in self._seen_ms.items() if known.get(key) is not None}


def _check_instance_id(instance_id: bytes) -> Refused | None:
    if len(instance_id) in (0, _INSTANCE_ID_BYTES):
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected the id of an instance as {_INSTANCE_ID_BYTES} bytes, found {len(instance_id)}",
    )
