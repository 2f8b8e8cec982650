"""Interceptors of a consumer: a user's code that sees, and may change, records before they are given out, and learns
which offsets were committed.

Guards one promise: an interceptor cannot make a poll or a commit fail. What it raises is logged, and the records go on
as the interceptor before it left them (Kafka's ConsumerInterceptors).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bus.client.interceptors import Complaints
from bus.client.values import ConsumerRecord, OffsetAndMetadata
from bus.model import TopicPartition


class ConsumerInterceptor(Protocol):
    """All of it is called in the thread that polls. `poll_arrow` passes it by."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records to give out; the next interceptor gets them. One that is left out counts as consumed."""
        ...

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These were committed."""
        ...

    def close(self) -> None:
        """The consumer is closed."""
        ...


class ConsumerInterceptorChain:
    """Calls each in the order in which they were given. False if there are none."""

    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._complain = Complaints(self._interceptors, "the consumer", clock).add

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """What the last of them made of `records`."""
        for position, interceptor in enumerate(self._interceptors):
            try:
                changed = interceptor.on_consume(records)
                if not isinstance(changed, list):
                    raise TypeError(f"expected on_consume to give a list of records, found {type(changed).__name__}")
            except Exception as error:
                self._complain(position, "on_consume", error)
            else:
                records = changed
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for position, interceptor in enumerate(self._interceptors):
            try:
                interceptor.on_commit(offsets)
            except Exception as error:
                self._complain(position, "on_commit", error)

    def close(self) -> None:
        for position, interceptor in enumerate(self._interceptors):
            try:
                interceptor.close()
            except Exception as error:
                self._complain(position, "close", error)
