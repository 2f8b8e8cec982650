"""Disturbances of a cluster beneath its transactions, beside faults: topics are deleted and created again, files are
lost, leaders move one by one, epochs come to their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from bus.transactions import epochs
from bus.transactions.changes import TransactionStep
from bus.transactions.records import TransactionLogged
from bus.transactions.requests import ProducerInitialized
from tests.simulation.broker_programs import Program, ask, create_topic
from tests.simulation.broker_world import BrokerWorld
from tests.simulation.coordinator_journal import Identity, journal_of

_DAY_MS = 86_400_000
_FIRST_EPOCH = 32_764  # two before the last one that is given


class TopicChanger(Program):
    """Deletes a topic and creates it again, time after time; each time what it says is repeated until it is done. With
    `crashes` a broker dies now and then behind a deletion."""

    def __init__(self, world: BrokerWorld, name: str, topic: str, partitions: int, *, crashes: bool = False) -> None:
        super().__init__(world, name)
        self._crashes = crashes
        self._topic = topic
        self._partitions = partitions

    async def do_something(self) -> None:
        await asyncio.sleep(self.world.random.uniform(0.5, 6.0))
        await self._delete()
        if self._crashes and self.world.random.randrange(2):
            self.world.any_broker().crash()
        await asyncio.sleep(self.world.random.choice((0.0, self.world.random.uniform(0, 2.0))))
        created = await create_topic(self.world, self._topic, self._partitions, {})
        self.world.live_topics.add(created.topic_id)

    async def _delete(self) -> None:
        """From here on nothing is said of what it had."""
        world = self.world
        state = world.journal.state
        world.live_topics.discard(state.topics[self._topic].topic_id if self._topic in state.topics else "")
        while True:
            request = pb.DeleteTopicsRequest(topics=[self._topic])
            answer = await ask(world, self.name, "DeleteTopics", request, is_repeatable=False)
            if not isinstance(answer, BusError):
                code = ErrorCode(answer.topics[0].error_code)
                if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    return
            await asyncio.sleep(0.3)


class Thief(Program):
    """Staged files are lost, as on a disk that breaks. `stolen`: the identities of the transactions they were of."""

    def __init__(self, world: BrokerWorld, name: str) -> None:
        super().__init__(world, name)
        self.stolen: set[Identity] = set()

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.uniform(0.0, 1.0))
        staged = [key for key in world.disk.keys_below("topics") if "/_staged/" in key]
        if staged:
            key = world.random.choice(staged)
            producer_id, epoch, *_ = key.split("/")[-1].split("-")
            self.stolen.add((int(producer_id), int(epoch)))
            world.note(self.name, "loses", key)
            world.acting = None
            world.disk.delete(key)

    def has_stopped(self, identity: Identity) -> bool:
        """True if the transaction can neither continue nor be taken back: its commit is decided, what was lost does not
        exist, and a broker has said so."""
        states = journal_of(self.world).states_of(identity)
        is_told = any("cannot be applied" in message for message in self.world.errors)
        return identity in self.stolen and states[-1:] == ["PrepareCommit"] and is_told


class ClockSetter(Program):
    """Sets the wall clocks of machines, one by one: ahead, back, right again, by moments and by a day."""

    async def do_something(self) -> None:
        random = self.world.random
        await asyncio.sleep(random.uniform(0.2, 3.0))
        reach_ms = random.choice((10, 2_000, 60_000, _DAY_MS))
        self.world.any_broker().set_wall_clock(random.choice((0, random.randrange(-reach_ms, reach_ms))))


class Mover(Program):
    """Gives a partition other replicas, and so another leader: of a topic, of coordinators, of groups, each alone."""

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.uniform(0.0, 1.0))
        topics = world.journal.state.topics
        names = [name for name in ("t", "u", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC) if name in topics]
        if not names:
            return
        name = world.random.choice(names)
        everyone = range(len(world.brokers))
        moved = pb.PartitionReassignment(
            topic=name,
            partition=world.random.randrange(len(topics[name].partitions)),
            replica_ids=world.random.sample(everyone, world.random.randrange(2, len(everyone) + 1)),
        )
        request = pb.AlterPartitionReassignmentsRequest(partitions=[moved])
        await ask(world, self.name, "AlterPartitionReassignments", request)


@contextlib.contextmanager
def late_epochs() -> Iterator[None]:
    """A new transactional id begins shortly before its producer id is used up."""
    begin = epochs._begin

    def begin_late(step: TransactionStep, *args: Any, **options: Any) -> None:
        record, reply = step.record, step.reply

        def record_late(first: TransactionLogged) -> None:
            record(replace(first, producer_epoch=_FIRST_EPOCH))

        def reply_late(request_id: int, answer: Any) -> None:
            is_given = isinstance(answer, ProducerInitialized)
            reply(request_id, replace(answer, producer_epoch=_FIRST_EPOCH) if is_given else answer)

        with mock.patch.object(step, "record", record_late), mock.patch.object(step, "reply", reply_late):
            begin(step, *args, **options)

    with mock.patch.object(epochs, "_begin", begin_late):
        yield
