"""How many streams each caller has open.

Guards one promise: no caller takes so many that others get none. A caller is a principal at a host: without
authentication all programs of one machine are one. Calls of one answer are bounded by the memory that they take
(broker_api/request_memory.py) and by gRPC, which lets so many run on one connection.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import grpc

from bus.addresses import counted_host
from bus.broker_api.requests import Caller
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest


class OpenStreams:
    def __init__(self, count_max: int) -> None:
        """Of one caller."""
        self._count_max = count_max
        self._counts: Counter[tuple[str, str]] = Counter()  # > 0 each

    @contextlib.contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """Raises `UnreadableRequest` if the caller has as many as it may."""
        key = caller.principal, counted_host(caller.host)
        if self._counts[key] >= self._count_max:
            raise UnreadableRequest(
                Unreadable(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"expected at most {self._count_max} open streams of {caller.principal} from {caller.host} "
                    "(client.streams.count.max), found more; close some",
                )
            )
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
