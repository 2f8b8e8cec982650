"""Structured logging: text for people, JSON for machines, the same fields in both.

Every line may carry topic, partition, version and the id of the request that caused it; never a record's contents.
The request id travels in a context variable, so it follows one call through every line.

Guards one promise: who logs never waits for who reads. Lines are queued, and a thread of their own writes them to
standard error; where its reader has stopped, the queue fills, and lines beyond are dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, NamedTuple

from bus.client_texts import one_line

_log = logging.getLogger(__name__)

request_id: ContextVar[str] = ContextVar("request_id", default="")

# The caller's principal; empty if the listener does not authenticate.
principal: ContextVar[str] = ContextVar("principal", default="")

SHOWN_FIELDS = ("topic", "partition", "version", "requests")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: value for name in SHOWN_FIELDS if (value := getattr(record, name, None)) is not None}
    if current := request_id.get():
        fields["request"] = current
    if caller := principal.get():
        fields["principal"] = caller
    return fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO  bus.broker serving ./bus-data topic=orders partition=0`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name} " + one_line(f"{record.getMessage()}{fields}")
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {one_line(part)}" for part in traceback)])


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, then the fields, then the traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")  # all else is escaped already


# Lines that wait for the reader of a descriptor, in bytes.
QUEUED_BYTES_MAX = 4 * 1024 * 1024
# The time that the last lines have when a process ends.
_CLOSE_TIMEOUT_S = 1.0


class _QueuedText(NamedTuple):
    data: bytes
    dropped: int  # texts that were dropped before this one, since the start


class DescriptorWriter:
    """Writes texts to a descriptor in order, in a daemon thread of its own, so that no caller waits for the reader.

    A text that the queue has no room for (`bytes_max`), or that the descriptor refuses (`refused`), is dropped and
    counted. `notice` makes the text that is written in the place of so many."""

    def __init__(
        self, descriptor: int, *, notice: Callable[[int], str] | None = None, bytes_max: int = QUEUED_BYTES_MAX
    ) -> None:
        self._descriptor = descriptor
        self._notice = notice
        self._bytes_max = bytes_max
        # Its `put` neither waits nor takes a lock of Python's, so signal handlers and finalizers may log.
        self._texts: queue.SimpleQueue[_QueuedText | None] = queue.SimpleQueue()
        # Each counter has one writer: `put` (in turns, under the handler's lock), or the thread.
        self._bytes_put = 0
        self._bytes_done = 0
        self._dropped = 0
        self.refused = 0
        self._reported = 0
        self._thread = threading.Thread(target=self._write_all, name="log writer", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._bytes_put - self._bytes_done + len(data) > self._bytes_max:
            self._dropped += 1
            return
        self._bytes_put += len(data)
        self._texts.put(_QueuedText(data, self._dropped))

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Write what waits; return when it is written, and after `timeout_s` in any case."""
        self._texts.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while True:
            if self._texts.empty():
                self._report(self._dropped)
            text = self._texts.get()
            if text is None:
                self._report(self._dropped)
                return
            self._report(text.dropped)
            if not self._write(text.data):
                self.refused += 1
            self._bytes_done += len(text.data)

    def _report(self, dropped: int) -> None:
        count = dropped + self.refused - self._reported
        if count > 0 and self._notice is not None and self._write(self._notice(count).encode()):
            self._reported += count

    def _write(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process may have made the pipe one that does not wait
                select.select([], [self._descriptor], [])
            except OSError:  # its reader is gone, the disk is full: the next text may find it otherwise
                return False
        return True


class QueuedHandler(logging.Handler):
    """Formats in the thread that logs, whose context variables name the request, and leaves the line to a writer."""

    def __init__(self, descriptor: int, *, bytes_max: int = QUEUED_BYTES_MAX) -> None:
        super().__init__()
        self._writer = DescriptorWriter(descriptor, notice=self._dropped_line, bytes_max=bytes_max)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Logs it; Python's own would write to standard error here."""
        message = f"a log line of {record.name} cannot be written: {record.msg!r} with {record.args!r}"
        self._writer.put(self.format(_new_record(logging.ERROR, message, sys.exc_info())) + "\n")

    def _dropped_line(self, count: int) -> str:
        message = f"{count} lines of the log are missing here: their reader was too slow, or refused them"
        return self.format(_new_record(logging.WARNING, message)) + "\n"

    def close(self) -> None:
        self.write_out()
        super().close()

    def write_out(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Write what waits, as `DescriptorWriter.close`; nothing is written afterwards."""
        self._writer.close(timeout_s)


def _new_record(level: int, message: str, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, message, (), exc_info)


def configure_logging(
    *, form: str = "text", level: str = "INFO", levels: Mapping[str, str] | None = None, descriptor: int = 2
) -> None:
    """Log to `descriptor` (standard error) from now on, warnings of Python and exceptions that nobody takes with it.
    `form` is text or json; raises ValueError for anything else. For processes that are the bus's own."""
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    if form not in formatters:
        raise ValueError(f"expected a log format of text or json, found {form!r}")
    handler = QueuedHandler(descriptor)
    handler.setFormatter(formatters[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, own_level in (levels or {}).items():
        logging.getLogger(name).setLevel(own_level)
    logging.captureWarnings(True)
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_end_of_thread


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    what = unraisable.err_msg or "exception ignored in"
    _log.error("%s: %r", what, unraisable.object, exc_info=unraisable.exc_value)


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else "unknown"
    _log.error("thread %s ended by an exception", name, exc_info=ended.exc_value)


def write_out_logs(timeout_s: float) -> None:
    """Write the lines that wait, for `timeout_s` at most; for a process that is about to end."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, QueuedHandler):
            handler.write_out(timeout_s)


_INTERVAL_S = 0.25
PAUSE_S_MIN = 0.5


async def warn_of_pauses(
    clock: Callable[[], float] = time.monotonic, processor_clock: Callable[[], float] = time.thread_time
) -> None:
    """Log a WARNING for each pause of the event loop of half a second or longer, until cancelled. Both clocks are in
    seconds; `processor_clock` is the processor time of the calling thread.

    Everything that a broker does waits for its loop, so a pause explains late answers, missed heartbeats and sessions
    that ended. The processor time tells the two causes apart: code that holds the loop uses the processor; a process
    that was stopped, or whose machine was moved or is too busy, gets none."""
    while True:
        began_s, used_s = clock(), processor_clock()
        await asyncio.sleep(_INTERVAL_S)
        paused_s = clock() - began_s - _INTERVAL_S
        if paused_s >= PAUSE_S_MIN:
            _warn(paused_s, processor_clock() - used_s)


def _warn(paused_s: float, used_s: float) -> None:
    cause = (
        "a request or a task of the broker held it"
        if used_s >= paused_s / 2
        else "the process was stopped, or the machine is too busy"
    )
    _log.warning(
        "the event loop did not run for %.1f s and used the processor for %.1f s meanwhile: %s",
        paused_s,
        used_s,
        cause,
    )
