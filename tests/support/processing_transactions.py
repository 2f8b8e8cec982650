"""A producer of transactions and a member that commits, in memory, for tests of runs with a transactional id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.client.values import GroupMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

STAMP = GroupMetadata("billing", 4, "member")


class Future:
    def __init__(self, error: BusError | None) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error


class FakeProducer:
    """`fails`: the name of a call -> the errors of the next ones, None for none. `refused`: values that no topic takes;
    like the real one it tells at the future, at each later call of `send`, and at the commit."""

    def __init__(self, refused: Sequence[bytes] = (), **fails: Sequence[ErrorCode | None]) -> None:
        self.calls: list[str] = []
        self.committed: list[bytes] = []
        self.offsets: list[dict[TopicPartition, int]] = []  # of each transaction that is committed
        self._fails = {name: list(codes) for name, codes in fails.items()}
        self._refused = refused
        self._sent: list[bytes] = []
        self._pending: dict[TopicPartition, int] = {}
        self._error: BusError | None = None

    def _do(self, name: str) -> None:
        self.calls.append(name)
        code = self._fails[name].pop(0) if self._fails.get(name) else None
        if code is not None:
            raise BusError(code, name)

    def init_transactions(self) -> None:
        self._do("init")

    def begin_transaction(self) -> None:
        self._sent, self._error = [], None
        self._do("begin")

    def send(self, topic: str, value: Any, *others: Any) -> Future:
        self._do("send")
        if self._error is not None:
            raise self._error
        self._sent.append(value)
        if value in self._refused:
            self._error = BusError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
            return Future(self._error)
        return Future(None)

    def flush(self) -> None: ...

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group_metadata: GroupMetadata) -> None:
        assert group_metadata == STAMP
        self._do("offsets")
        self._pending = dict(offsets)

    def commit_transaction(self) -> None:
        if self._error is not None:
            raise self._error
        self._do("commit")
        self.committed += self._sent
        self.offsets.append(self._pending)

    def abort_transaction(self) -> None:
        self._do("abort")

    def partitions_for(self, topic: str) -> list[int]:
        self._do("partitions")
        return [0, 1]

    def close(self) -> None: ...


class FakeMember:
    def __init__(self, error: BusError | None = None) -> None:
        self.error = error
        self.refused: list[ErrorCode] = []

    def transaction_stamp(self, partitions: Sequence[TopicPartition]) -> GroupMetadata:
        if self.error is not None:
            raise self.error
        return STAMP

    def note_stamp_refused(self, error: BusError, stamp: GroupMetadata) -> None:
        self.refused.append(error.code)
