"""The brokers of a simulated cluster, by the contract of bus.proto, from the rows alone: slow, obvious, and without the
caches of the real ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.client.connection.produce_requests import Produced
from bus.errors import BusError, ErrorCode
from bus.model import ProducerStamp, sequence_after


@dataclass(frozen=True)
class Row:
    value: int
    time_ms: int
    stamp: ProducerStamp | None  # of this record


@dataclass(frozen=True)
class Sent:
    """One partition's share of a request, as it was when it was sent: values and times."""

    partition: int
    stamp: ProducerStamp | None
    records: list[tuple[int, int]]


@dataclass
class SimulatedLog:
    """One partition: rows for ever, and what its leader keeps in memory."""

    led: list[tuple[int, str]]  # leader epochs and leaders, the present one last
    rows: list[Row] = field(default_factory=list)
    fences: dict[int, int] = field(default_factory=dict)  # producer id -> lowest epoch that may append

    @property
    def leader(self) -> str:
        return self.led[-1][1]

    def last(self, producer_id: int) -> ProducerStamp | None:
        stamps = [row.stamp for row in self.rows if row.stamp is not None and row.stamp.producer_id == producer_id]
        return stamps[-1] if stamps else None

    def offset_of(self, stamp: ProducerStamp) -> int | None:
        return next((offset for offset, row in enumerate(self.rows) if row.stamp == stamp), None)


@dataclass(frozen=True)
class Resumed:
    last_epoch: int
    last_sequence: int
    version: int


@dataclass(frozen=True)
class NamedIdentity:
    producer_id: int
    epoch: int
    last_epoch: int  # the one that this instance had before; -1: none


class SimulatedCluster:
    def __init__(self, addresses: tuple[str, ...], partitions: int, is_refused: Callable[[int], bool]) -> None:
        self.addresses = addresses
        self.logs = [SimulatedLog([(0, addresses[0])]) for _ in range(partitions)]
        self.names: dict[str, NamedIdentity] = {}
        self.fenced_rows: list[tuple[int, int, int, int]] = []  # partition, producer id, epoch, rows at its resuming
        self._is_refused = is_refused
        self._producer_ids = itertools.count()

    def restart(self, address: str) -> None:
        """Memory is gone; the log stays."""
        for log in self.logs:
            if log.leader == address:
                log.fences.clear()

    def move(self, partition: int, address: str) -> None:
        log = self.logs[partition]
        log.led.append((log.led[-1][0] + 1, address))
        self.logs[partition].fences.clear()

    # ------------------------------------------------------------ identities

    def init_producer(
        self, name: str | None, producer_id: int | None, producer_epoch: int | None
    ) -> tuple[int, int] | ErrorCode:
        if name is None:
            return next(self._producer_ids), 0
        found = self.names.get(name)
        if found is None:
            found = NamedIdentity(next(self._producer_ids), 0, -1)
        elif producer_id is None:
            found = NamedIdentity(found.producer_id, found.epoch + 1, -1)
        elif producer_epoch == found.epoch:
            found = NamedIdentity(found.producer_id, found.epoch + 1, found.epoch)
        elif producer_epoch != found.last_epoch:
            return ErrorCode.PRODUCER_FENCED
        self.names[name] = found
        return found.producer_id, found.epoch

    def resume(self, address: str, partition: int, producer_id: int, epoch: int) -> Resumed | ErrorCode:
        log = self.logs[partition]
        if log.leader != address:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < self._epoch_by_name(producer_id):
            return ErrorCode.PRODUCER_FENCED
        last = log.last(producer_id)
        if epoch < max(log.fences.get(producer_id, 0), last.producer_epoch if last else 0):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        log.fences[producer_id] = epoch
        self.fenced_rows.append((partition, producer_id, epoch, len(log.rows)))
        if last is None:
            return Resumed(-1, -1, -1)
        return Resumed(last.producer_epoch, last.base_sequence, len(log.rows))

    def _epoch_by_name(self, producer_id: int) -> int:
        return max((named.epoch for named in self.names.values() if named.producer_id == producer_id), default=0)

    # ------------------------------------------------------------ produce

    def append(self, address: str, sent: Sent) -> Produced:
        log, stamp = self.logs[sent.partition], sent.stamp
        if log.leader != address:
            return refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if stamp is not None:
            found = self._place(log, stamp)
            if isinstance(found, ErrorCode):
                return refusal(found)
            if found is not None:
                return Produced(base_offset=found, version=found)
        refused = [index for index, (value, _) in enumerate(sent.records) if self._is_refused(value)]
        if refused:
            error = BusError(ErrorCode.MESSAGE_TOO_LARGE, "simulated")
            return Produced(error, record_errors=dict.fromkeys(refused, error))
        base_offset = len(log.rows)
        for position, (value, time_ms) in enumerate(sent.records):
            log.rows.append(Row(value, time_ms, stamp and _advance(stamp, position)))
        return Produced(base_offset=base_offset, version=len(log.rows))

    def _place(self, log: SimulatedLog, stamp: ProducerStamp) -> int | ErrorCode | None:
        """The offset if the log has it; None if it is the next one."""
        if stamp.producer_epoch < self._epoch_by_name(stamp.producer_id):
            return ErrorCode.PRODUCER_FENCED
        last = log.last(stamp.producer_id)
        if stamp.producer_epoch < max(log.fences.get(stamp.producer_id, 0), last.producer_epoch if last else 0):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        known = log.offset_of(stamp)
        if known is not None:
            return known
        follows = last is not None and stamp.base_sequence == sequence_after(last.base_sequence, 1)
        begins = stamp.base_sequence == 0 and (last is None or stamp.producer_epoch > last.producer_epoch)
        return None if follows or begins else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def _advance(stamp: ProducerStamp, count: int) -> ProducerStamp:
    return ProducerStamp(stamp.producer_id, stamp.producer_epoch, sequence_after(stamp.base_sequence, count))


def refusal(code: ErrorCode) -> Produced:
    return Produced(BusError(code, "simulated"))
