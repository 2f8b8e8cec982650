"""A question to the brokers that is asked beside the thread that polls.

Guards one promise: the time that a caller gave to a poll holds, however slow a broker is, and what was asked for is not
lost with it: the look-up goes on, and a later poll finds its answer. One question at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, NoReturn, TypeVar

AnswerT = TypeVar("AnswerT")


class Lookup(Generic[AnswerT]):
    """`changed` is notified when the answer is there. All but the question itself happens in the thread that polls."""

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
        """What was answered. Raises what the question raised."""
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
