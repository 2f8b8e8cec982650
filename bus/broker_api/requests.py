"""Requests of all kinds: who asks, items that are counted before they are looked at, what ends a request without an
answer, the memory that it takes, and how its answer names a broker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.cluster_metadata.cluster_state import ClusterState
from bus.descriptions import BrokerInfo
from bus.errors import ErrorCode, Refused
from bus.model import PLAINTEXT, BrokerEndpoint, TopicPartition
from bus.runtime.tasks import LoopShare

ItemT_co = TypeVar("ItemT_co", covariant=True)
T = TypeVar("T")


class InvalidArgument(ValueError):
    """A request that says something that no call of its kind can mean; the message names what was expected."""


class BrokerStopping(Exception):
    """The broker goes away before an answer is there."""


class Unavailable(Exception):
    """The broker cannot answer for now; the message says why."""


class OverQuota(Exception):
    """The caller would have to wait for its quota for longer than it does; the message says which one, and how long."""


class TakesLong(Exception):
    """Raised by what tries to do a request's work on the event loop: it is more than should be done there in one go."""


ANONYMOUS = "User:ANONYMOUS"  # of an unauthenticated caller, as Kafka names it


@dataclass(frozen=True, slots=True)
class Caller:
    """`connection` tells callers apart where the broker's memory and threads are shared out. `host` is as Kafka prints
    it, "/127.0.0.1". `request_id` is in all log lines about the request. `listener` is the name of the one that the
    call came by."""

    connection: Hashable
    host: str
    request_id: str
    principal: str = ANONYMOUS  # "User:<name>", by the certificate that was shown
    client_id: str = ""  # as the client says; the program's name, and no proof of anything
    listener: str = PLAINTEXT


class Items(Protocol[ItemT_co]):
    """The items of a request, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ItemT_co]: ...


def new_request_id() -> str:
    return secrets.token_hex(4)


_WRONG_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(frozen=True, slots=True)
class CurrentLeader:
    endpoint: BrokerEndpoint
    leader_epoch: int


def find_current_leader(state: ClusterState, partition: TopicPartition, result: object) -> CurrentLeader | None:
    """Return the leader that an answer names beside a refusal for the leader or its epoch, so that the caller need not
    ask for metadata (KIP-951). None for any other `result`, and if the leader is unknown or fenced."""
    if not isinstance(result, Refused) or result.code not in _WRONG_LEADER:
        return None
    leadership = state.leadership(partition)
    leader = None if leadership is None else state.brokers.get(leadership.leader_id)
    if leadership is None or leader is None or leader.is_fenced:
        return None
    return CurrentLeader(leader.endpoint, leadership.leader_epoch)


def info_at(listener: str, broker: BrokerEndpoint) -> BrokerInfo:
    """Describe the broker by its address for clients of the listener; if it has no such listener, without one."""
    found = broker.at(listener)
    return BrokerInfo(broker.broker_id, "", 0) if found is None else BrokerInfo(found.broker_id, found.host, found.port)


async def gather_answers(
    answers: Sequence[asyncio.Future[T]], *, timeout_ms: int, otherwise: str, share: LoopShare
) -> list[T | Refused]:
    """Return the answers of partitions that were asked at once, each in the place of its question; in place of one that
    is later than `timeout_ms`, REQUEST_TIMED_OUT with `otherwise`."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + timeout_ms / 1000
    results: list[T | Refused] = []
    for answer in answers:
        if share.is_used_up:
            await share.wait()
        if not answer.done() and (left_s := due_s - loop.time()) > 0:
            await asyncio.wait([answer], timeout=left_s)
            share.renew()
        results.append(answer.result() if answer.done() else Refused(ErrorCode.REQUEST_TIMED_OUT, otherwise))
    return results


# A client that has no more than this part of it is never held back by others.
_SHARE_MIN = 1 / 1024


class RequestMemory:
    """The bytes that requests hold until the broker is done with them, shared out by client. Any value is the name of a
    client. Belongs to one event loop. `overdraft_bytes`: what a client may have beyond its share, of requests that had
    been read when the share was used up.

    A request counts from when it is read until all of its records are committed or dropped, whether it is answered
    before that (acks 0 and 1), or its client has gone, or does not read the answer. Guards two promises: all requests
    together take about `bytes_max`; and no client fills it: each may have as much as is still free, so that one greedy
    client leaves half of it to the others, and twelve of them leave a thirteenth (dynamic thresholds, Choudhury and
    Hahne 1998).
    """

    def __init__(self, bytes_max: int, overdraft_bytes: int = 0) -> None:
        self._bytes_max = bytes_max
        self._overdraft_bytes = overdraft_bytes
        self._bytes = 0
        self._bytes_of: dict[Hashable, int] = {}
        # By client, each in the order they came: what others drop costs a look at each client, not at each stream.
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}

    def bytes_left(self, client: Hashable) -> int:
        """How much more the client may have now."""
        own = self._bytes_of.get(client, 0)
        return max(int(self._bytes_max * _SHARE_MIN) + 1, self._bytes_max - self._bytes) - own

    def has_room(self, client: Hashable) -> bool:
        """It may take one more request, of any size."""
        return self.bytes_left(client) > 0

    def is_overdrawn(self, client: Hashable) -> bool:
        """It has so much more than its share that the next request is refused, though it has been read. A client of a
        few streams never has: each waits for room before it is read on."""
        return self.bytes_left(client) < -self._overdraft_bytes

    def hold(self, client: Hashable, size_bytes: int) -> Held:
        held = Held(self, client)
        held.grow_to(size_bytes)
        return held

    @contextlib.contextmanager
    def holding(self, client: Hashable, size_bytes: int) -> Iterator[None]:
        """Hold the bytes in this block."""
        held = self.hold(client, size_bytes)
        try:
            yield
        finally:
            held.drop()

    def add(self, client: Hashable, size_bytes: int) -> None:
        self._bytes += size_bytes
        own = self._bytes_of.get(client, 0) + size_bytes
        if own:
            self._bytes_of[client] = own
        else:
            self._bytes_of.pop(client, None)
        if size_bytes < 0 and self._waiting:
            self._call_those_with_room()

    async def wait_for_room(self, client: Hashable) -> None:
        """First come, first served, among those who may."""
        while not self.has_room(client):
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, {})[called] = None
            try:
                await called
            finally:
                self._leave(client, called)

    def _call_those_with_room(self) -> None:
        for client in [client for client in self._waiting if self.has_room(client)]:
            for called in self._waiting.pop(client):
                if not called.done():
                    called.set_result(None)

    def _leave(self, client: Hashable, called: asyncio.Future[None]) -> None:
        line = self._waiting.get(client, {})
        line.pop(called, None)
        if not line:
            self._waiting.pop(client, None)


class Held:
    """The memory of one request, until each of its users has dropped it: the call, and each batch that waits."""

    __slots__ = ("_memory", "_size_bytes", "_users", "client")

    def __init__(self, memory: RequestMemory, client: Hashable) -> None:
        self._memory = memory
        self.client = client
        self._size_bytes = 0
        self._users = 1

    def grow_to(self, size_bytes: int) -> None:
        if size_bytes > self._size_bytes:
            self._memory.add(self.client, size_bytes - self._size_bytes)
            self._size_bytes = size_bytes

    def use(self) -> None:
        self._users += 1

    def drop(self) -> None:
        self._users -= 1
        if not self._users:
            self._memory.add(self.client, -self._size_bytes)
            self._size_bytes = 0
