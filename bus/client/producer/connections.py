"""The sender's connections: what is under way to each broker, and whether more may follow.

Guards one promise: one connection never has more than max.in.flight.requests.per.connection requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from bus.client.config.parsing import ProducerConfig
from bus.client.producer.instructions import Agenda, Connection, Cut, Open, Request, Send
from bus.client.producer.queue import Part
from bus.errors import count_of


class Connections:
    def __init__(self, config: ProducerConfig, agenda: Agenda) -> None:
        self.by_address: dict[str, Connection] = {}
        self.timeout_ms = min(config.request_timeout_ms, config.delivery_timeout_ms)  # of a request
        self._window = config.max_in_flight_requests_per_connection
        self._agenda = agenda
        self._opening: dict[str, bool] = {}  # addresses of streams to come, and whether what waits there is in a hurry
        self._correlation_id = 0

    def count_requests(self) -> int:
        return sum(len(connection.requests) for connection in list(self.by_address.values()))

    def has_window(self, now_ms: float) -> bool:
        return not self.by_address or any(self._is_open(found, now_ms) for found in self.by_address.values())

    def may_send_to(self, address: str, now_ms: float) -> bool:
        connection = self.by_address.get(address)
        return address not in self._opening if connection is None else self._is_open(connection, now_ms)

    def _is_open(self, connection: Connection, now_ms: float) -> bool:
        return len(connection.requests) < self._window and now_ms >= connection.muted_until_ms

    def open(self, address: str, *, is_hurried: bool) -> None:
        self._opening[address] = is_hurried
        self._agenda.add(Open(address))

    def on_opened(self, address: str) -> tuple[Connection, bool]:
        """The connection, and whether what waits for it is in a hurry."""
        connection = self.by_address[address] = Connection(address)
        return connection, self._opening.pop(address)

    def on_not_opened(self, address: str) -> None:
        del self._opening[address]

    def send(self, connection: Connection, parts: list[Part], now_ms: float) -> None:
        self._correlation_id += 1
        request = Request(self._correlation_id, parts, now_ms, now_ms + self.timeout_ms)
        connection.requests.append(request)
        self._agenda.add(Send(connection, request))

    def take_answered(self, connection: Connection, correlation_id: int, part_count: int) -> Request:
        """The oldest request. Raises `ValueError` if the answer does not fit it; then it stays."""
        request = connection.requests[0] if connection.requests else None
        if request is None or request.correlation_id != correlation_id:
            expected = "no answer" if request is None else f"answer {request.correlation_id}"
            raise ValueError(f"expected {expected}, found answer {correlation_id}")
        if len(request.parts) != part_count:
            raise ValueError(f"expected {count_of(len(request.parts), 'partition')}, found {part_count}")
        connection.requests.popleft()
        return request

    def mute(self, connection: Connection, until_ms: float) -> None:
        connection.muted_until_ms = until_ms
        self._agenda.wake_by(until_ms)

    def cut_silent(self, now_ms: float) -> None:
        """Those whose oldest request is overdue, each once: their end comes from their own threads."""
        for connection in self.by_address.values():
            if connection.requests and now_ms >= connection.requests[0].deadline_ms:
                connection.requests[0].deadline_ms = math.inf
                reason = f"no answer of the broker at {connection.address} within request.timeout.ms"
                self._agenda.add(Cut(connection, reason))

    def next_events(self, now_ms: float) -> Iterator[float]:
        for connection in self.by_address.values():
            if connection.requests:
                yield connection.requests[0].deadline_ms
            if connection.muted_until_ms > now_ms:
                yield connection.muted_until_ms

    def take_all(self) -> list[Connection]:
        """The producer is closed."""
        connections = list(self.by_address.values())
        self.by_address.clear()
        return connections
