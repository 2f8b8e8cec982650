"""Lines of the log: one for each event, whatever a client calls itself."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bus
from bus.runtime.logs import SHOWN_FIELDS, configure_logging

FORGED = "x\n2026-01-01T00:00:00.000Z ERROR   bus.broker all is lost\r\x1b[2J\x9b31m\u2028y"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_forges_no_line_and_no_colour(restored: None, form: str) -> None:
    stream = io.StringIO()
    configure_logging(form=form, stream=stream)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("bus.test").exception("client %s", FORGED, extra={"topic": FORGED})
    text = stream.getvalue()
    assert not {"\r", "\x1b", "\x9b", "\u2028"} & set(text)
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
