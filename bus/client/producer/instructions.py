"""What the sender wants done, for its owner to carry out in order, and when it wants to be called again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bus.client.producer.queue import Part, PartitionQueue


@dataclass(slots=True)
class Request:
    """What one call of a stream carries."""

    correlation_id: int
    parts: list[Part]
    sent_at_ms: float
    deadline_ms: float


class Connection:
    """To one broker: the requests that are not answered, oldest first."""

    __slots__ = ("address", "muted_until_ms", "requests")

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: deque[Request] = deque()
        self.muted_until_ms = 0.0  # the broker asked for a pause


@dataclass(frozen=True, slots=True)
class RefreshTopics:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InitProducer:
    """`producer_id` and `producer_epoch`: the present identity, to be followed by a higher epoch; None at first."""

    producer_id: int | None
    producer_epoch: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    queue: PartitionQueue
    address: str
    topic_id: str
    producer_id: int
    producer_epoch: int


Errand = RefreshTopics | InitProducer | Resume


@dataclass(frozen=True, slots=True)
class Open:
    """`on_opened` or `on_not_opened` follows."""

    address: str


@dataclass(frozen=True, slots=True)
class Send:
    connection: Connection
    request: Request


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer is late: nothing more is expected of the connection but its end."""

    connection: Connection
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """`tick` is due earlier than it last said: at `wakes_at_ms`."""


Instruction = Open | Send | Cut | Wake | Errand
_WAKE = Wake()


class Agenda:
    """The parts of the sender write it, its owner works it off."""

    __slots__ = ("instructions", "wakes_at_ms")

    def __init__(self) -> None:
        self.instructions: deque[Instruction] = deque()
        self.wakes_at_ms = 0.0  # when the next tick is due

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def wake_by(self, at_ms: float) -> None:
        if at_ms < self.wakes_at_ms:
            self.wakes_at_ms = at_ms
            self.add(_WAKE)

    def wake_now(self) -> None:
        self.wakes_at_ms = 0.0
        self.add(_WAKE)
