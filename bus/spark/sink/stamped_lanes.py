"""What to send next of batches that carry their stamps already, and what to make of the answers.

Guards one promise: of a partition the parts are appended in the order of their sequences, each once, also if a part is
refused, lost or answered late; else the failure is known. A part keeps its stamp for ever, so sending it again is
always safe. Decides only: no clock, no thread, no wire.

Of a partition one part is under way until a first one is in the log, then as many as the broker remembers. Else the
second part could come where the producer's older epoch ended, after the first one was refused, and be taken for its
continuation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bus.client.connection.cluster import error_of
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

# The answer says that the records are in the log.
_SETTLED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
# Retriable for most callers. Here the topic is gone, or another one has its name: half a batch must not go there.
_FINAL = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
_TICK_S = 0.001  # past the moment itself


@dataclass(slots=True, eq=False)
class Part:
    """Records of one partition that travel together."""

    partition: TopicPartition
    base_sequence: int
    record_count: int
    size_bytes: int
    payload: Any  # encoded records, opaque here
    attempts: int = 0
    number: int = -1  # of all parts; sequences wrap, these do not


@dataclass(slots=True)
class _Lane:
    """Invariant: every part that is not settled is in one of the three; the numbers of `waiting` grow, and are above
    all others. While one has failed, others are under way and the lane is not open."""

    waiting: deque[Part] = field(default_factory=deque)
    under_way: list[Part] = field(default_factory=list)
    failed: list[Part] = field(default_factory=list)  # waits until nothing is under way any more
    is_open: bool = False  # a part was settled, and none failed since
    not_before_s: float = 0.0

    @property
    def first(self) -> Part:
        return min((*self.failed, *self.under_way, *self.waiting), key=_number_of)


class StampedLanes:
    """`backoff_s(attempts)` is how long to wait after so many. Times are of one clock that never goes back."""

    def __init__(self, *, in_flight_max: int, patience_s: float, backoff_s: Callable[[int], float]) -> None:
        assert in_flight_max >= 1, f"expected at least one part under way, found {in_flight_max}"
        self._in_flight_max = in_flight_max
        self._patience_s = patience_s
        self._backoff_s = backoff_s
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._last_refusal: BusError | None = None
        self._failure: BusError | None = None
        self._progress_s = 0.0  # when something was settled, or there was nothing to settle
        self._count = 0
        self.unsettled_bytes = 0

    @property
    def failure(self) -> BusError | None:
        """What no repetition helps against. Nothing is sent any more."""
        return self._failure

    @property
    def is_done(self) -> bool:
        return self.unsettled_bytes == 0

    def add(self, part: Part, now_s: float) -> None:
        """Sequences of a partition are added in order."""
        if self.is_done:
            self._progress_s = now_s
        part.number, self._count = self._count, self._count + 1
        self._lanes.setdefault(part.partition, _Lane()).waiting.append(part)
        self.unsettled_bytes += part.size_bytes

    def take_ready(self, now_s: float) -> list[Part]:
        """What may be sent now; it is under way from then on."""
        if self._failure is not None:
            return []
        ready = [part for lane in self._lanes.values() for part in self._take(lane, now_s)]
        for part in ready:
            part.attempts += 1
        return ready

    def _take(self, lane: _Lane, now_s: float) -> Iterator[Part]:
        if lane.not_before_s > now_s:
            return
        while self._has_room(lane) and lane.waiting:
            part = lane.waiting.popleft()
            lane.under_way.append(part)
            yield part

    def _has_room(self, lane: _Lane) -> bool:
        return len(lane.under_way) < (self._in_flight_max if lane.is_open else 1)

    def on_answer(self, part: Part, code: int, message: str, *, throttle_s: float, now_s: float) -> None:
        lane = self._lanes[part.partition]
        lane.not_before_s = max(lane.not_before_s, now_s + throttle_s)
        if code in _SETTLED:
            self._settle(lane, part, now_s)
        else:
            self._refuse(lane, part, error_of(code, f"{part.partition}: {message}"), now_s)

    def on_lost(self, part: Part, error: BusError, now_s: float) -> None:
        """No answer will come: the records are in the log or not."""
        self._refuse(self._lanes[part.partition], part, error, now_s)

    def _settle(self, lane: _Lane, part: Part, now_s: float) -> None:
        lane.under_way.remove(part)
        lane.is_open = not lane.failed
        self.unsettled_bytes -= part.size_bytes
        self._progress_s = now_s
        self._requeue(lane)

    def _refuse(self, lane: _Lane, part: Part, error: BusError, now_s: float) -> None:
        is_first = part is lane.first
        lane.under_way.remove(part)
        lane.failed.append(part)
        lane.is_open = False
        if not _may_retry(error.code, is_first=is_first):
            self._failure = self._failure or error
        if is_first or self._last_refusal is None:
            self._last_refusal = error
        lane.not_before_s = max(lane.not_before_s, now_s + self._backoff_s(part.attempts - 1))
        self._requeue(lane)

    def _requeue(self, lane: _Lane) -> None:
        """First things first: while an earlier part is missing, a later one can only be refused."""
        if lane.failed and not lane.under_way:
            lane.waiting.extendleft(sorted(lane.failed, key=_number_of, reverse=True))
            lane.failed.clear()

    def check_patience(self, now_s: float) -> None:
        """Fails when nothing has been settled for too long."""
        if self.is_done or self._failure is not None:
            return
        if now_s - self._progress_s > self._patience_s:
            why = "no answer" if self._last_refusal is None else str(self._last_refusal)
            self._failure = BusError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"nothing was acknowledged for {self._patience_s:g} s (delivery.timeout.ms); the last refusal: {why}",
            )

    def wait_s(self, now_s: float) -> float | None:
        """Until when there may be something to send without an answer; None: only an answer helps. 0 and a tick if a
        pause of a lane has ended since `take_ready`."""
        if self._failure is not None or self.is_done:
            return None
        held = [lane.not_before_s for lane in self._lanes.values() if lane.waiting and self._has_room(lane)]
        return max(0.0, min([self._progress_s + self._patience_s, *held]) - now_s) + _TICK_S


def _number_of(part: Part) -> int:
    return part.number


def _may_retry(code: ErrorCode, *, is_first: bool) -> bool:
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return not is_first  # what comes before it is missing, and will be sent again
    return code.is_retriable and code not in _FINAL
