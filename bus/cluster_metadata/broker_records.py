"""Records of brokers and of the controller: their changes, their lines for people, and their mending in a log that
contradicts itself.

Each record says what it changes, what people read of it, and what becomes of it in a log that contradicts itself; how a
snapshot states them is below. Guards two promises: a broker epoch is given once, and no broker goes while it leads a
partition or is one of its replicas.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from bus.addresses import bare_host, format_address
from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord, Mending
from bus.cluster_metadata.cluster_state import (
    LEVEL_OF_CLUSTERS,
    LEVEL_OF_LISTENERS,
    Broker,
    ClusterState,
    ElectedController,
)
from bus.model import BrokerEndpoint, ListenerAddress

_LISTENER = re.compile(r"([A-Z0-9_.-]+):([A-Z_]+)://([^,\s]+):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class BrokerRegistered(ClusterRecord):
    """A broker serves at this address, its first or another one."""

    broker_id: int
    host: str
    port: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.brokers.put(self.broker_id, Broker(BrokerEndpoint(self.broker_id, self.host, self.port)))


@dataclass(frozen=True, slots=True)
class BrokerUnregistered(ClusterRecord):
    """The broker is unregistered and leads nothing."""

    broker_id: int

    def apply(self, draft: ClusterDraft) -> None:
        broker_id = self.broker_id
        assert broker_id in draft.brokers.now, f"expected broker {broker_id} to be registered"
        led = next(draft.led_by(broker_id), None)
        assert led is None, f"expected broker {broker_id} to lead nothing, found that it leads {led}"
        followed = next(draft.followed_by(broker_id), None)
        assert followed is None, f"expected broker {broker_id} to be no replica, found that it is one of {followed}"
        draft.brokers.remove(broker_id)


@dataclass(frozen=True, slots=True)
class BrokerStarted(ClusterRecord):
    """The registration of an incarnation of a broker, fenced at first. The same record again, with the same incarnation
    and broker epoch, updates the broker's own fields and leaves it fenced or unfenced as it is."""

    since_level: ClassVar[int] = LEVEL_OF_CLUSTERS
    broker_id: int
    host: str
    port: int
    rack: str | None
    incarnation: str
    broker_epoch: int  # > every earlier one of the cluster
    level_min: int  # the levels of bus.version that the broker can work at
    level_max: int

    def apply(self, draft: ClusterDraft) -> None:
        before, epoch = draft.brokers.now.get(self.broker_id), self.broker_epoch
        known = before if before is not None and before.life == (self.incarnation, epoch) else None
        assert known is not None or epoch > draft.broker_epoch_max, (
            f"expected a broker epoch above {draft.broker_epoch_max} for broker {self.broker_id}, found {epoch}"
        )
        broker = Broker(
            BrokerEndpoint(self.broker_id, self.host, self.port),
            self.rack,
            self.incarnation,
            epoch,
            is_fenced=known is None or known.is_fenced,
            level_min=self.level_min,
            level_max=self.level_max,
        )
        draft.brokers.put(self.broker_id, broker)
        draft.broker_epoch_max = max(draft.broker_epoch_max, epoch)

    def mend(self, mending: Mending) -> str:
        epoch = mending.draft.broker_epoch_max + 1
        if mending.take(replace(self, broker_epoch=epoch)):
            return f"broker {self.broker_id} is registered, with broker epoch {epoch}"
        return "given up: what was known before stays"


@dataclass(frozen=True, slots=True)
class BrokerListeners(ClusterRecord):
    """Clients reach that life of the broker by these listeners, not by the address in `BrokerStarted`, which other
    brokers use. A later `BrokerStarted` without this record behind it says that there is the listener PLAINTEXT only.

    `listeners`: `NAME:PROTOCOL://host:port` with commas between them.
    """

    since_level: ClassVar[int] = LEVEL_OF_LISTENERS
    broker_id: int
    broker_epoch: int
    listeners: str

    def apply(self, draft: ClusterDraft) -> None:
        broker = draft.known_life(self.broker_id, self.broker_epoch)
        try:
            listeners = parse_listeners(self.listeners)
        except ValueError as error:
            raise AssertionError(f"listeners of broker {self.broker_id}: {error}") from None
        draft.brokers.put(self.broker_id, replace(broker, endpoint=replace(broker.endpoint, listeners=listeners)))


@dataclass(frozen=True, slots=True)
class BrokerFenced(ClusterRecord):
    """The broker is gone or silent. It stays registered, and is chosen as leader only if no broker is unfenced."""

    since_level: ClassVar[int] = LEVEL_OF_CLUSTERS
    broker_id: int
    broker_epoch: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.set_fenced(self.broker_id, self.broker_epoch, is_fenced=True)

    def describe(self) -> str | None:
        return f"broker {self.broker_id} is fenced, at broker epoch {self.broker_epoch}"


@dataclass(frozen=True, slots=True)
class BrokerUnfenced(ClusterRecord):
    since_level: ClassVar[int] = LEVEL_OF_CLUSTERS
    broker_id: int
    broker_epoch: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.set_fenced(self.broker_id, self.broker_epoch, is_fenced=False)

    def describe(self) -> str | None:
        return f"broker {self.broker_id} is unfenced, at broker epoch {self.broker_epoch}"


@dataclass(frozen=True, slots=True)
class ControllerElected(ClusterRecord):
    """This life of the broker changes the metadata from here on. The broker may register only behind this record."""

    since_level: ClassVar[int] = LEVEL_OF_CLUSTERS
    broker_id: int
    incarnation: str

    def apply(self, draft: ClusterDraft) -> None:
        draft.controller = ElectedController(self.broker_id, self.incarnation)

    def describe(self) -> str | None:
        return f"broker {self.broker_id} is the controller"


def encode_listeners(listeners: Iterable[ListenerAddress]) -> str:
    return ",".join(f"{one.name}:{one.protocol}://{format_address(one.host, one.port)}" for one in listeners)


def parse_listeners(text: str) -> tuple[ListenerAddress, ...]:
    """Raises `ValueError` for anything but at least one listener, each name once."""
    parts = [_LISTENER.fullmatch(part) for part in text.split(",")]
    found = [ListenerAddress(part[1], part[2], bare_host(part[3]), int(part[4])) for part in parts if part is not None]
    if len(found) < len(parts) or len({one.name for one in found}) < len(parts):
        raise ValueError(f"expected NAME:PROTOCOL://host:port with commas between them, each name once, found {text!r}")
    return tuple(found)


def snapshot_brokers(state: ClusterState) -> Iterator[ClusterRecord]:
    """The broker epochs rise in their order."""
    if state.controller is not None:
        yield ControllerElected(state.controller.broker_id, state.controller.incarnation)
    brokers = sorted(state.brokers.values(), key=lambda broker: broker.broker_epoch)
    for broker in brokers:
        endpoint = broker.endpoint
        if broker.broker_epoch == 0:
            yield BrokerRegistered(endpoint.broker_id, endpoint.host, endpoint.port)
            if broker.is_fenced:
                yield BrokerFenced(endpoint.broker_id, 0)
        else:
            yield _started(broker)
            if endpoint.listeners:
                text = encode_listeners(endpoint.listeners)
                yield BrokerListeners(endpoint.broker_id, broker.broker_epoch, text)
            if not broker.is_fenced:
                yield BrokerUnfenced(endpoint.broker_id, broker.broker_epoch)
    if state.broker_epoch_max > max((broker.broker_epoch for broker in brokers), default=0):
        # The broker with the last epoch is no longer registered, but its epoch must not be given again.
        last = next(number for number in itertools.count() if number not in state.brokers)
        yield BrokerStarted(last, "", 0, None, "", state.broker_epoch_max, 0, 0)
        yield BrokerUnregistered(last)


def _started(broker: Broker) -> BrokerStarted:
    endpoint = broker.endpoint
    return BrokerStarted(
        endpoint.broker_id,
        endpoint.host,
        endpoint.port,
        broker.rack,
        broker.incarnation,
        broker.broker_epoch,
        broker.level_min,
        broker.level_max,
    )
