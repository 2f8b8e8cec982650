"""Structured logging: text for people, JSON for machines, the same fields in both.

Every line may carry topic, partition, version and the id of the request that caused it; never a record's contents.
The request id travels in a context variable, so it follows one call through every line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TextIO

request_id: ContextVar[str] = ContextVar("request_id", default="")

# Of the caller, if it was asked who it is.
principal: ContextVar[str] = ContextVar("principal", default="")

SHOWN_FIELDS = ("topic", "partition", "version", "requests")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: value for name in SHOWN_FIELDS if (value := getattr(record, name, None)) is not None}
    if current := request_id.get():
        fields["request"] = current
    if caller := principal.get():
        fields["principal"] = caller
    return fields


# What a terminal or a reader of lines takes for more than a character.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def _one_line(text: str) -> str:
    """A client chooses its names: no newline in one begins a line of the log, no escape sequence recolours it."""
    return text.translate(_CONTROLS)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO  bus.broker serving ./bus-data topic=orders partition=0`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name} " + _one_line(f"{record.getMessage()}{fields}")
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {_one_line(part)}" for part in traceback)])


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
        return json.dumps(line, default=str)


def configure_logging(
    *, form: str = "text", level: str = "INFO", levels: Mapping[str, str] | None = None, stream: TextIO | None = None
) -> None:
    """Log to `stream` (standard error) from now on. `form` is text or json; raises ValueError for anything else."""
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    if form not in formatters:
        raise ValueError(f"expected a log format of text or json, found {form!r}")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatters[form]())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, own_level in (levels or {}).items():
        logging.getLogger(name).setLevel(own_level)
