"""How the administrator reaches brokers: any of them, each of them, or the controller.

Guards one promise: what changes the cluster is sent once. After an unknown outcome the second answer would not be the
first one's, so only what was never sent is sent again. A question is repeated for as long as that may help. Safe to use
from several threads.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from bus.client.connection.cluster import Cluster
from bus.client.connection.connections import NotConnected
from bus.client.connection.retrying import monotonic_ms
from bus.client.connection.silent_brokers import SILENT_AFTER_MS
from bus.grpc_api.v1 import bus_pb2 as pb

ResultT = TypeVar("ResultT")


class CallTimes(Protocol):
    """The settings of a client that say how long it tries."""

    @property
    def retries(self) -> int: ...
    @property
    def default_api_timeout_ms(self) -> int: ...


class BrokerCalls:
    """Every method blocks until the answer, at most for `default.api.timeout.ms`, and raises `BusError`."""

    def __init__(self, cluster: Cluster, times: CallTimes) -> None:
        self._cluster = cluster
        self._times = times

    def deadline_ms(self) -> float:
        return monotonic_ms() + self._times.default_api_timeout_ms

    def retrying(self, ask: Callable[[], ResultT], deadline_ms: float) -> ResultT:
        return self._cluster.retry(ask, deadline_ms=deadline_ms, retries=self._times.retries)

    def describe(self, names: Sequence[str] = (), deadline_ms: float | None = None) -> Any:
        """The cluster and these topics, or all."""
        deadline_ms = self.deadline_ms() if deadline_ms is None else deadline_ms
        return self.retrying(lambda: self._cluster.describe(names, deadline_ms=deadline_ms), deadline_ms)

    def ask(self, method: str, request: Any) -> Any:
        """Any broker, as often as it takes: the question changes nothing."""
        deadline_ms = self.deadline_ms()
        return self.retrying(
            lambda: self._cluster.call(method, request, deadline_ms=deadline_ms, is_reading=True), deadline_ms
        )

    def ask_each(
        self, ask_one: Callable[[pb.Broker, float], Iterable[ResultT]], deadline_ms: float | None = None
    ) -> list[ResultT]:
        """What `ask_one`, which gets a broker and the deadline, finds at each of them. After a failure all are asked
        again, as they are by then: what a broker had that is gone is found at another one."""
        until_ms = self.deadline_ms() if deadline_ms is None else deadline_ms

        def ask() -> list[ResultT]:
            brokers = self._cluster.describe(deadline_ms=until_ms).brokers
            return [found for broker in brokers for found in ask_one(broker, until_ms)]

        return self.retrying(ask, until_ms)

    def on_controller(self, method: str, request: Any) -> Any:
        """Sent once. The controller has to answer a question first, so most faults come before the request leaves."""
        deadline_ms = self.deadline_ms()
        patience_ms = itertools.accumulate(itertools.repeat(2), operator.mul, initial=SILENT_AFTER_MS)

        def ask() -> Any:
            self.describe(deadline_ms=deadline_ms)
            address = self._cluster.controller_address
            if address is not None:
                left_ms = max(0.0, deadline_ms - monotonic_ms())
                self._cluster.knock(address, min(next(patience_ms), left_ms))
            return self._cluster.call(method, request, address=address, deadline_ms=deadline_ms, is_repeatable=False)

        return self._cluster.retry(
            ask,
            deadline_ms=deadline_ms,
            retries=self._times.retries,
            may_retry=lambda error: isinstance(error, NotConnected) and self._cluster.may_retry(error),
        )
