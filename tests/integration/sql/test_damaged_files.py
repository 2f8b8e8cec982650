"""A data file that the engine cannot read is named with its partition and offsets, whatever the engine says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bus.sql
from tests.support.log_root import LogRoot


def lose_footer(data: bytes) -> bytes:
    return data[:-100] + bytes(92) + data[-8:]


def rename_a_column(data: bytes) -> bytes:
    return data.replace(b"producer_epoch", b"producer_epocj")


def spoil_page_headers(data: bytes) -> bytes:
    return data[:4] + bytes([0xFF]) * 40 + data[44:]


@pytest.mark.parametrize("spoil", [lose_footer, rename_a_column, spoil_page_headers, lambda data: data[:-1]])
@pytest.mark.parametrize("base", [0, 10])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, spoil: Callable[[bytes], bytes], base: int) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(2)
    path = log.data_file(base)
    path.write_bytes(spoil(path.read_bytes()))
    with bus.sql.connect(str(log.root)) as connection, pytest.raises(bus.sql.SqlError) as caught:
        connection.sql("SELECT * FROM orders").fetchall()
    said = str(caught.value)
    assert "orders/0" in said
    assert path.name in said
    assert f"offsets {base} to {base + 9}" in said
    assert "`bus log verify orders/0`" in said


def test_an_error_of_the_statement_is_told_as_it_is(tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(1)
    with bus.sql.connect(str(log.root)) as connection, pytest.raises(bus.sql.SqlError, match="nothing_such"):
        connection.sql("SELECT nothing_such FROM orders")
