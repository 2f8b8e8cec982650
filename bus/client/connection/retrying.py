"""The one loop that repeats what may succeed later, how long it pauses, and the clock that says when it is over."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from bus.errors import BusError

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

# After so many failures, one after another, the next one is a warning: a leader that moves costs one or two.
FAILURES_UNREPORTED = 2
# A broker is silent, and another one is asked, when something that was sent to it has had no answer for this long: half
# of broker.session.timeout.ms, so that another broker is being asked by the time it can know.
SILENT_AFTER_MS = 1_000
# For so long a broker may not know a partition that there is: it follows the metadata several times a second.
UNKNOWN_PARTITION_MS_MAX = 2_000


def monotonic_ms() -> float:
    """The clock of every `now_ms` and `deadline_ms` of a client: milliseconds with fractions, never going back."""
    return time.monotonic() * 1000


class Backoff:
    """Exponential, with a fifth of jitter either way: clients that failed together do not come back together."""

    def __init__(self, base_ms: int, max_ms: int) -> None:
        self._base_ms = base_ms
        self._max_ms = max(base_ms, max_ms)

    def ms(self, attempt: int) -> float:
        """The next pause. `attempt` 0 is the first repetition."""
        bounded: float = min(self._max_ms, self._base_ms * 2 ** min(attempt, 30))
        return bounded * random.uniform(0.8, 1.2)


def retry(
    ask: Callable[[], ResultT],
    *,
    may_retry: Callable[[int, BusError], bool],
    pause: Callable[[int, BusError], bool],
) -> ResultT:
    """Return what `ask` returns. After a `BusError` it is called again, if `may_retry`, and if `pause`, which waits,
    says that there is time; both get the number of attempts before this one. Raises the last error."""
    attempt = 0
    while True:
        try:
            return ask()
        except BusError as error:
            if not may_retry(attempt, error) or not pause(attempt, error):
                raise
        attempt += 1


# The bound of items in one request. It is below that of a broker, which bounds each request in items and bytes before
# it looks at them. Partitions, topics and members are items alike; a topic name with its partitions are several.
ITEMS_MAX = 5_000
# The bound for requests that decide about the cluster: topics to create, to grow, to delete.
CHANGES_MAX = 500


def portions(
    items: Iterable[ItemT], items_max: int = ITEMS_MAX, count_of: Callable[[ItemT], int] = lambda _: 1
) -> Iterator[list[ItemT]]:
    """Split the items, of which one request would be beyond what a broker reads, in order; each portion counts at most
    `items_max`, or is a single item. Yields one empty portion if there are none."""
    portion: list[ItemT] = []
    count = 0
    for item in items:
        counted = count_of(item)
        if portion and count + counted > items_max:
            yield portion
            portion, count = [], 0
        portion.append(item)
        count += counted
    yield portion


# However many brokers there are: if all are slow, more questions do not make them faster.
_AT_ONCE_MAX = 3

Cancel = Callable[[], object]
# Asks the broker at an address; the function given to it is called once, with the answer or a `BusError`.
Start = Callable[[str, Callable[[Any], None]], Cancel]


def first_answer(
    addresses: Sequence[str],
    start: Start,
    *,
    may_ask_next: Callable[[BusError], bool],
    patience_ms: float = SILENT_AFTER_MS,
) -> Any:
    """Return the answer of the first broker that answers, and cancel all other calls: a broker that does not answer
    costs a second, not the time-out of the call. Only for questions that may be asked twice. Brokers are asked in
    order, the next one when one fails in a way in which another may not (`may_ask_next`), or has not answered for
    `patience_ms`. Raises the last `BusError`."""
    assert addresses, "at least one broker is asked"
    left = list(reversed(addresses))
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    cancels: list[Cancel] = []
    failures = 0
    try:
        while True:
            if left and len(cancels) - failures < _AT_ONCE_MAX:
                cancels.append(start(left.pop(), outcomes.put))
            may_start = bool(left) and len(cancels) - failures < _AT_ONCE_MAX
            try:
                answer = outcomes.get(timeout=patience_ms / 1000 if may_start else None)
            except queue.Empty:
                continue
            if not isinstance(answer, BusError):
                return answer
            failures += 1
            if not may_ask_next(answer) or (not left and failures == len(cancels)):
                raise answer
    finally:
        for cancel in cancels:
            cancel()


class Lookup(Generic[AnswerT]):
    """A question to the brokers that is asked beside the polling thread; one at a time. The time that a caller gave to
    a poll holds, however slow a broker is, and the question is not lost with the poll: a later poll finds its answer.
    `changed` is notified when the answer is there. Everything but the question itself happens in the polling thread."""

    def __init__(self, name: str, changed: threading.Condition) -> None:
        self._name = name
        self._changed = changed
        self._outcome: Callable[[], AnswerT] | None = None
        self.is_under_way = False

    def start(self, ask: Callable[[], AnswerT]) -> None:
        assert not self.is_under_way, f"{self._name}: one question at a time"
        self._outcome, self.is_under_way = None, True
        try:
            threading.Thread(target=self._ask, args=(ask,), name=self._name, daemon=True).start()
        except BaseException:  # too many threads: the next poll asks again
            self.is_under_way = False
            raise

    @property
    def has_answer(self) -> bool:
        """An answer, or an error, that was not taken yet."""
        return self._outcome is not None

    def take(self) -> AnswerT:
        """Return the answer. Raises what the question raised."""
        outcome, self._outcome = self._outcome, None
        assert outcome is not None, f"{self._name}: there is no answer"
        return outcome()

    def _ask(self, ask: Callable[[], AnswerT]) -> None:
        outcome: Callable[[], AnswerT]
        try:
            answer = ask()
        except BaseException as error:  # the thread's edge; the thread that polls raises it
            outcome = partial(_fail, error)
        else:
            outcome = partial(_give, answer)
        with self._changed:
            self._outcome, self.is_under_way = outcome, False
            self._changed.notify_all()


def _give(answer: AnswerT) -> AnswerT:
    return answer


def _fail(error: BaseException) -> NoReturn:
    raise error
