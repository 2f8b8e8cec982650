"""Interceptors of a consumer: a user's code that sees, and may change, records before they are given out, and learns
which offsets were committed.

Guards one promise: an interceptor cannot make a poll or a commit fail. What it raises is logged, and the records go on
as the interceptor before it left them (Kafka's ConsumerInterceptors).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bus.client.interceptors import Chain
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


class ConsumerInterceptorChain(Chain):
    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(interceptors, "the consumer", clock)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """What the last of them made of `records`."""
        return self.change("on_consume", records, list)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.tell("on_commit", offsets)
