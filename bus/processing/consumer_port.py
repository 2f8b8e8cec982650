"""What the processing loop asks of a consumer, so that it runs on the real one and on a fake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from bus.client.values import ConsumerRecord
from bus.model import TopicPartition

OnPartitions = Callable[[list[TopicPartition]], None]


class GroupMember(Protocol):
    def start_processing(self, on_assigned: OnPartitions, on_revoked: OnPartitions, on_lost: OnPartitions) -> None:
        """From now on these are called inside of `poll`, before the functions that were given to `subscribe`, and
        nothing is committed but by `commit`."""
        ...


class ProcessedConsumer(Protocol):
    """As `bus.Consumer`; for one thread, but for `wakeup`."""

    def poll(self, timeout_ms: int = 500) -> list[ConsumerRecord]:
        """Raises `RecordDeserializationError`; the position stays at its record."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Any: ...

    def assignment(self) -> set[TopicPartition]: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def wakeup(self) -> None: ...

    def close(self) -> None: ...
