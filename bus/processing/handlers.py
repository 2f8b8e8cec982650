"""The user's handler: a function or a coroutine of the record, in the manual ack modes also of its acknowledgement.

Guards that a handler that could not be called is refused before the first record is fetched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from bus.client.config.values import conflict
from bus.processing.settings import ProcessingSettings
from bus.processing.work import Work
from bus.processing.work_board import WorkBoard


class Acknowledgement:
    """Says that a record is done. From any thread, in any order, also after the handler has returned; the offset is
    committed when all records below it are done too."""

    __slots__ = ("_board", "_work")

    def __init__(self, board: WorkBoard, work: Work) -> None:
        self._board = board
        self._work = work

    def acknowledge(self) -> bool:
        """False if there is nothing to be acknowledged any more: it was, or the partition is another member's now."""
        return self._board.acknowledge(self._work)


def is_coroutine_handler(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  an object with an async __call__


def check_handler(handler: Any, settings: ProcessingSettings) -> None:
    """Raises `BusError` INVALID_CONFIG."""
    arguments = ("record", "acknowledgement") if settings.is_manual else ("record",)
    expected = f"expected a handler of ({', '.join(arguments)}) with ack={settings.ack!r}"
    if not callable(handler):
        raise conflict(f"{expected}, found {type(handler).__name__}")
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return  # built in; it cannot be asked
    try:
        signature.bind(*arguments)
    except TypeError:
        raise conflict(f"{expected}, found {getattr(handler, '__name__', handler)!s}{signature}") from None


def calling(handler: Callable[..., Any], board: WorkBoard, settings: ProcessingSettings) -> Callable[[Work], Any]:
    if settings.is_manual:
        return lambda work: handler(work.record, Acknowledgement(board, work))
    return lambda work: handler(work.record)
