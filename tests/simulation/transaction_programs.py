"""Producers that write in transactions, call by call, and what they are told of how each transaction ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from bus.client.connection.metadata_cache import TopicInfo, error_of
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from tests.simulation.broker_faults import NO_FAULTS
from tests.simulation.broker_network import Answer
from tests.simulation.broker_programs import Place, Program, ask, leader_of, topic_info
from tests.simulation.broker_world import BrokerWorld, SimulatedBroker

# Rows of transactions are told from those of other producers by it.
VALUE_PREFIX = b"tx:"
_END_S_MAX = 60.0
# What was said twice may come the second time when the transaction after it is over, too.
_LATE_S_MAX = 10.0
# Answers of EndTxn that do not say how the transaction ended: the same call is made again.
_INDEFINITE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "not known"


@dataclass(slots=True)
class Attempt:
    """One transaction of one instance. `sent` has for each partition the values in the order of their sequences;
    `acknowledged`: how many of them, from the first on."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sent: dict[Place, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[Place, int] = field(default_factory=dict)
    is_commit_asked: bool = False
    names_ends: bool | None = None  # None: nothing was sent yet
    outcome: Outcome = Outcome.OPEN
    is_stopped: bool = False  # what was lost of it keeps it from ending, for ever
    offset: int | None = None  # that it commits for the group of its transactional id
    is_offset_acknowledged: bool = False
    versions: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # version, base offset


class Transactor(Program):
    """An instance of a transactional id; several may have the same id. It commits most transactions, aborts some, and
    leaves some open for their time-out."""

    def __init__(self, world: BrokerWorld, name: str, transactional_id: str, topics: list[TopicInfo]) -> None:
        super().__init__(world, name)
        self.transactional_id = transactional_id
        self._topics = topics
        self._identity: tuple[int, int] | None = None
        self._coordinator: SimulatedBroker | None = None
        self._number = 0
        self.attempts: list[Attempt] = []
        self.always_names_ends = False
        self.only_whole = False  # what was not acknowledged as a whole it aborts
        # Whether the transaction of that producer id and epoch may stay as it is for ever.
        self.may_stop: Callable[[tuple[int, int]], bool] = lambda identity: False

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.choice((0.0, 0.01, world.random.uniform(0, 1.0))))
        if world.random.randrange(3) == 0:
            await self._look_at_offset()
        if self._identity is None or world.random.randrange(12) == 0:
            await self._init()
        if self._identity is not None:
            await self._transact(world.random.choice(("commit", "commit", "commit", "abort", "leave")))

    # ------------------------------------------------------------ the steps

    async def _call(self, method: str, request: Any, broker: SimulatedBroker | None) -> Answer:
        """It may stand still before and after, for longer than any time-out."""
        await self._stand_still()
        answer = await ask(self.world, self.name, method, request, late_s=_LATE_S_MAX, broker=broker)
        await self._stand_still()
        return answer

    async def _stand_still(self) -> None:
        if self.world.faults != NO_FAULTS and self.world.chance(50):
            seconds = self.world.random.uniform(0.0, 8.0)
            self.world.note(self.name, f"stands still for {seconds:.1f} s")
            await asyncio.sleep(seconds)

    async def _init(self) -> None:
        request = pb.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.world.random.choice((1_000, 3_000, 20_000)),
        )
        if self._identity is not None and self.world.random.randrange(2):
            request.producer_id, request.producer_epoch = self._identity
        answer = await self._call("InitProducerId", request, await self._find())
        if isinstance(answer, BusError):
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self._identity = answer.producer_id, answer.producer_epoch
        else:
            self._identity = None if code is ErrorCode.PRODUCER_FENCED else self._identity
            self._coordinator = None
            assert code is ErrorCode.PRODUCER_FENCED or error_of(code, "").retriable, f"InitProducerId: {answer}"

    async def _find(self) -> SimulatedBroker | None:
        if self._coordinator is None:
            request = pb.FindCoordinatorRequest(key=self.transactional_id, key_type=pb.COORDINATOR_TYPE_TRANSACTION)
            answer = await ask(self.world, self.name, "FindCoordinator", request)
            if not isinstance(answer, BusError) and not answer.error_code:
                self._coordinator = self.world.broker_at(answer.coordinator.port)
        return self._coordinator

    async def _transact(self, end: str) -> Attempt:
        assert self._identity is not None
        world = self.world
        attempt = Attempt(self.transactional_id, *self._identity)
        self.attempts.append(attempt)
        is_whole = await self._fill(attempt)
        if not is_whole and self.only_whole:
            end = "abort"
        if end == "leave":
            self._identity = None if world.random.randrange(2) else self._identity
            if self._identity is not None:
                await asyncio.sleep(world.random.uniform(0, 4.0))
                await self._end(attempt, is_commit=True)
        else:
            await self._end(attempt, is_commit=end == "commit")
        return attempt

    async def _fill(self, attempt: Attempt) -> bool:
        """Fill the transaction; True if everything was acknowledged."""
        world = self.world
        is_whole = True
        for _ in range(world.random.randrange(1, 5)):
            topic = world.random.choice(self._topics)
            number = world.random.randrange(len(topic.partitions))
            is_whole = await self._send(attempt, topic, number, self._new_values()) and is_whole
            if not is_whole and world.random.randrange(2):
                break
        if is_whole and world.random.randrange(2):
            is_whole = await self._send_offset(attempt)
            if world.random.randrange(2):
                await self._look_at_offset()
        return is_whole

    def _new_values(self) -> list[bytes]:
        """Those of no other record."""
        first, self._number = self._number + 1, self._number + self.world.random.randrange(1, 4)
        return [b"%s%s:%d" % (VALUE_PREFIX, self.name.encode(), number) for number in range(first, self._number + 1)]

    async def _send(self, attempt: Attempt, topic: TopicInfo, number: int, values: list[bytes]) -> bool:
        """Send a batch; True if it was acknowledged. A batch that fails is sent again, as it was; what comes behind it
        is not."""
        world = self.world
        place = Place(topic.name, topic.topic_id, number)
        if any(
            (other.topic, other.partition) == (topic.name, number) and other.topic_id != topic.topic_id
            for other in attempt.sent
        ):
            return False  # the topic was deleted and made again: as for every client, its sequences are over
        sent = attempt.sent.setdefault(place, [])
        if len(sent) > attempt.acknowledged.get(place, 0):
            return False
        base = len(sent)
        sent += values
        data = pb.PartitionProduceData(
            topic=topic.name,
            partition=number,
            topic_id=topic.topic_id,
            arrow=encode_arrow(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])),
            producer_id=attempt.producer_id,
            producer_epoch=attempt.producer_epoch,
            base_sequence=base,
        )
        request = pb.ProduceRequest(
            transactional_id=self.transactional_id,
            names_last_sequences=self._decide_names_ends(attempt),
            partitions=[data],
        )
        for _ in range(world.random.randrange(1, 6)):
            answer = await self._call("ProduceOnce", request, leader_of(world, topic, number))
            if not isinstance(answer, BusError):
                code = ErrorCode(answer.partitions[0].error_code)
                if code is ErrorCode.NONE:
                    attempt.acknowledged[place] = len(sent)
                    return True
                if code in _TRANSACTION_ENDS:
                    return False
            topic = await self._refresh(topic)
            if topic.topic_id != place.topic_id:
                return False
            await asyncio.sleep(0.1)
        return False

    async def _send_offset(self, attempt: Attempt) -> bool:
        """Send an offset; True if it was acknowledged. Offsets grow with every transaction of the instance."""
        self._number += 1
        attempt.offset = self._number
        topic = self._topics[0]
        partitions = [pb.OffsetCommitPartition(topic=topic.name, partition=0, offset=attempt.offset, leader_epoch=-1)]
        request = pb.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_of(self.transactional_id),
            producer_id=attempt.producer_id,
            producer_epoch=attempt.producer_epoch,
            generation=-1,
            partitions=partitions,
        )
        return await self._commit_offsets(attempt, request)

    async def _commit_offsets(self, attempt: Attempt, request: Any) -> bool:
        for _ in range(self.world.random.randrange(1, 6)):
            broker = await find_group(self.world, self.name, request.group_id)
            answer = await self._call("TxnOffsetCommit", request, broker)
            if not isinstance(answer, BusError):
                code = ErrorCode(answer.partitions[0].error_code)
                if code is ErrorCode.NONE:
                    attempt.is_offset_acknowledged = True
                    return True
                if code in _TRANSACTION_ENDS or not error_of(code, "").retriable:
                    return False
            await asyncio.sleep(0.1)
        return False

    async def _look_at_offset(self) -> None:
        """The answer is judged where it is given."""
        group_id = group_of(self.transactional_id)
        request = stable_offset_request(group_id, self._topics[0].name)
        await self._call("OffsetFetch", request, await find_group(self.world, self.name, group_id))

    async def _refresh(self, topic: TopicInfo) -> TopicInfo:
        answer = await ask(self.world, self.name, "Metadata", pb.MetadataRequest(topics=[topic.name]))
        if isinstance(answer, BusError) or answer.topics[0].error_code:
            return topic
        found = topic_info(answer.topics[0])
        self._topics[[known.name for known in self._topics].index(topic.name)] = found
        return found

    async def _end(self, attempt: Attempt, *, is_commit: bool) -> None:
        """Asked until there is an answer, as after a time-out only the same call may be made."""
        world = self.world
        attempt.is_commit_asked = is_commit
        ends = [
            pb.TransactionEnd(topic=place.topic, partition=place.partition, last_sequence=count - 1)
            for place, count in attempt.acknowledged.items()
        ]
        request = pb.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=attempt.producer_id,
            producer_epoch=attempt.producer_epoch,
            is_commit=is_commit,
            ends=ends if self._decide_names_ends(attempt) else [],
        )
        answer_at_most = world.now + _END_S_MAX  # once nothing fails any more
        while True:
            answer = await self._call("EndTxn", request, await self._find())
            if not isinstance(answer, BusError):
                code = ErrorCode(answer.error_code)
                if code not in _INDEFINITE:
                    break
            if world.is_healed and self.may_stop((attempt.producer_id, attempt.producer_epoch)):
                self._identity, attempt.is_stopped = None, True
                return
            assert answer_at_most > world.now or not world.is_healed, f"EverythingEnds: {attempt}: {answer}"
            self._coordinator = None
            answer_at_most = world.now + _END_S_MAX if not world.is_healed else answer_at_most
            await asyncio.sleep(0.2)
        if code is ErrorCode.NONE:
            attempt.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
            attempt.versions = {
                (each.topic, each.partition): (each.version, each.base_offset) for each in answer.versions
            }
            self._identity = answer.producer_id, answer.producer_epoch
            return
        assert code in _TRANSACTION_ENDS, f"EndTxn of {attempt}: {answer}"
        if code is ErrorCode.TRANSACTION_ABORTABLE:
            attempt.outcome = Outcome.ABORTED
        self._identity = None

    def _decide_names_ends(self, attempt: Attempt) -> bool:
        """Once for each transaction: what the first batch has promised, the end keeps."""
        if attempt.names_ends is None:
            attempt.names_ends = self._names_ends()
        return attempt.names_ends

    def _names_ends(self) -> bool:
        return self.always_names_ends or self.world.random.randrange(4) > 0

    # ------------------------------------------------------------ the end

    async def check_end(self) -> None:
        """Its next transaction is committed, soon."""
        deadline = self.world.now + 60.0
        while not self.is_stopped:
            assert self.world.now < deadline, f"EverythingEnds: {self.name} commits no transaction"
            self._identity = None
            await self._init()
            if self._identity is not None:
                attempt = await self._transact("commit")
                if attempt.outcome is Outcome.COMMITTED:
                    break
            await asyncio.sleep(0.5)
        if not any(program.is_stopped for program in transactors_of(self.world)):
            await self._check_ended()

    @property
    def is_stopped(self) -> bool:
        """A transaction of its id, by whichever instance, will never end."""
        for program in transactors_of(self.world):
            for attempt in program.attempts:
                identity = attempt.producer_id, attempt.producer_epoch
                attempt.is_stopped = attempt.is_stopped or self.may_stop(identity)
        return any(
            attempt.is_stopped
            for program in transactors_of(self.world)
            if program.transactional_id == self.transactional_id
            for attempt in program.attempts
        )

    async def _check_ended(self) -> None:
        """No transaction stays decided, or open beyond its time-out."""
        deadline = self.world.now + 60.0
        states = ["Ongoing", "PrepareCommit", "PrepareAbort"]
        answer: Any = None
        for broker in self.world.brokers:
            while True:
                assert self.world.now < deadline, f"EverythingEnds: {broker.name} has {answer}"
                answer = await ask(
                    self.world, self.name, "ListTransactions", pb.ListTransactionsRequest(states=states), broker=broker
                )
                if not isinstance(answer, BusError) and not answer.error_code and not answer.transactions:
                    break
                await asyncio.sleep(1.0)


def transactors_of(world: BrokerWorld) -> list[Transactor]:
    return [program for program in world.programs if isinstance(program, Transactor)]


def group_of(transactional_id: str) -> str:
    return f"tx-{transactional_id}"


async def find_group(world: BrokerWorld, who: str, group_id: str) -> SimulatedBroker | None:
    """Its coordinator, or any broker while that is not known."""
    answer = await ask(world, who, "FindCoordinator", pb.FindCoordinatorRequest(key=group_id))
    if isinstance(answer, BusError) or answer.error_code:
        return None
    return world.broker_at(answer.coordinator.port)


def stable_offset_request(group_id: str, topic: str) -> Any:
    group = pb.OffsetFetchGroup(group_id=group_id, topics=[pb.TopicPartitions(topic=topic, partitions=[0])])
    return pb.OffsetFetchRequest(groups=[group], require_stable=True)


async def fetch_stable_offset(world: BrokerWorld, topic: str, transactional_id: str) -> int:
    """That of partition 0, once no transaction that is open may change it."""
    deadline, group_id = world.now + 60.0, group_of(transactional_id)
    request = stable_offset_request(group_id, topic)
    while True:
        broker = await find_group(world, "judge", group_id)
        answer = await ask(world, "judge", "OffsetFetch", request, broker=broker)
        if not isinstance(answer, BusError) and not answer.groups[0].error_code:
            (found,) = answer.groups[0].offsets
            if not found.error_code:
                return int(found.offset)
        assert world.now < deadline, f"EverythingEnds: group {group_id}: {answer}"
        await asyncio.sleep(0.5)


# Another instance has come, the transaction was aborted, or it has to be.
_TRANSACTION_ENDS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
