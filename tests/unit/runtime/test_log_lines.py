"""Lines of the log: one for each event, whatever a client calls itself."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import bus
from bus.runtime.logs import (
    SHOWN_FIELDS,
    DescriptorWriter,
    QueuedHandler,
    TextFormatter,
    configure_logging,
    write_out_logs,
)

_PATIENCE_S = 30.0
_PIPE_BYTES_MAX = 1 << 20

FORGED = "x\n2026-01-01T00:00:00.000Z ERROR   bus.broker all is lost\r\x1b[2J\x9b31m\x7f\u2028\u202ey\u2066\u200f\u061c"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.unraisablehook, threading.excepthook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.unraisablehook, threading.excepthook = hooks


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with suppress(OSError):
            os.close(descriptor)


def _all_of(reader: int, writer: int) -> str:
    os.close(writer)
    with os.fdopen(os.dup(reader), encoding="utf-8") as rest:
        return rest.read()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_forges_no_line_and_no_colour(restored: None, pipe: tuple[int, int], form: str) -> None:
    configure_logging(form=form, descriptor=pipe[1])
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("bus.test").exception("client %s", FORGED, extra={"topic": FORGED})
    write_out_logs(_PATIENCE_S)
    text = _all_of(*pipe)
    assert not set("\r\x1b\x9b\x7f\u2028\u202e\u2066\u200f\u061c") & set(text)
    lines = text.splitlines()
    if form == "json":
        assert json.loads(lines[0])["topic"] == FORGED
        assert len(lines) == 1
    else:
        assert r"client x\n2026-01-01T" in lines[0]
        assert all(line.startswith("  ") for line in lines[1:])
        assert len(lines) > 3


def test_fields_of_log_lines_are_fields_that_are_shown() -> None:
    sources = "".join(path.read_text() for path in Path(bus.__file__).parent.rglob("*.py"))
    used = {name for fields in re.findall(r"extra=\{(.*?)\}", sources) for name in re.findall(r'"(\w+)":', fields)}
    assert used
    assert used <= set(SHOWN_FIELDS), "a field that is not in SHOWN_FIELDS is left out of the line"


def _queued_handler(descriptor: int, *, bytes_max: int) -> QueuedHandler:
    handler = QueuedHandler(descriptor, bytes_max=bytes_max)
    handler.setFormatter(TextFormatter())
    return handler


def _record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("bus.test", logging.INFO, __file__, 1, text, args, None)


def test_who_logs_does_not_wait_for_a_reader_that_has_stopped_and_the_missing_lines_are_counted(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    handler = _queued_handler(writer, bytes_max=10_000)
    line = "x" * 1_000
    count = (_PIPE_BYTES_MAX + 10_000) // len(line) + 50  # more than the pipe and the queue hold
    for _ in range(count):
        handler.handle(_record(line))
    handler.write_out(timeout_s=0)  # the end of a process does not wait for the reader either
    found: list[str] = []
    drained = threading.Thread(target=lambda: found.append(_read_to_end(reader)), daemon=True)
    drained.start()
    handler.write_out(_PATIENCE_S)
    os.close(writer)
    drained.join(_PATIENCE_S)
    lines = found[0].splitlines()
    written = [one for one in lines if line in one]
    missing = [int(one.split(" lines of the log are missing here")[0].split()[-1]) for one in lines if "missing" in one]
    assert missing, "nothing says that lines are missing"
    assert 0 < len(written) < count
    assert len(written) + sum(missing) == count


def _read_to_end(reader: int) -> str:
    with os.fdopen(os.dup(reader), encoding="utf-8") as rest:
        return rest.read()


def test_lines_that_the_descriptor_refuses_are_counted_and_later_ones_are_written(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    refusing = DescriptorWriter(writer, notice=lambda count: f"{count} are missing\n")
    refusing.put("lost\n")
    while refusing.refused == 0:
        time.sleep(0.001)
    with (tmp_path / "log").open("wb") as log:
        os.dup2(log.fileno(), writer)
    refusing.put("written\n")
    refusing.close(_PATIENCE_S)
    os.close(writer)
    assert (tmp_path / "log").read_text() == "1 are missing\nwritten\n"


def test_a_line_that_cannot_be_formatted_names_its_logger_and_stops_nobody(pipe: tuple[int, int]) -> None:
    handler = _queued_handler(pipe[1], bytes_max=10_000)
    handler.handle(_record("%d of %d", "no number"))
    handler.write_out(_PATIENCE_S)
    text = _all_of(*pipe)
    assert "a log line of bus.test cannot be written: '%d of %d'" in text
    assert "TypeError" in text


class _Falling:
    def __del__(self) -> None:
        raise ValueError("of a finalizer")


def test_what_python_itself_would_write_to_standard_error_is_logged(restored: None, pipe: tuple[int, int]) -> None:
    configure_logging(descriptor=pipe[1])
    _Falling()
    gc.collect()
    thread = threading.Thread(target=lambda: 1 / 0, name="worker")
    thread.start()
    thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning", stacklevel=1)
    write_out_logs(_PATIENCE_S)
    text = _all_of(*pipe)
    assert "of a finalizer" in text
    assert "thread worker ended by an exception" in text
    assert "a warning" in text
