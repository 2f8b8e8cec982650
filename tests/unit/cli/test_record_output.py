"""Bytes that go out whole, records of which it is known how many did, and the status after a signal."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import click
import pytest
from click.testing import CliRunner

from bus.cli.commands import BusGroup
from bus.cli.output import WholeOutput
from bus.cli.records.record_format import RecordOutput, write_raw
from bus.client.values import ConsumerRecord
from bus.model import TimestampType
from bus.platform.signals import Interrupts, signals_as_interrupts

# More than a pipe holds, several times over, and lines that end anywhere in its pages.
RECORDS = [ConsumerRecord("t", 0, n, 0, TimestampType.CREATE_TIME, None, b"x" * (n % 97), (), 0) for n in range(20_000)]
PRINTED = b"".join(map(write_raw, RECORDS))


class Reader:
    """Takes a pipe in small pieces, and does `at_half` when it has half of what is printed."""

    def __init__(self, read: int, at_half: Callable[[], None] = lambda: None, *, stops_at_half: bool = False) -> None:
        self.data = b""
        self._thread = threading.Thread(target=self._run, args=(read, at_half, stops_at_half))
        self._thread.start()

    def _run(self, read: int, at_half: Callable[[], None], stops_at_half: bool) -> None:
        is_told = False
        while piece := os.read(read, 5_003):
            self.data += piece
            if not is_told and len(self.data) > len(PRINTED) // 2:
                is_told = True
                at_half()
                if stops_at_half:
                    break
        os.close(read)

    def join(self) -> bytes:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.data


@pytest.fixture(params=["waits", "does not wait"])
def pipe(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(write, request.param == "waits")
    yield read, write
    os.close(write) if is_open(write) else None


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def unbuffered(number: int) -> TextIO:
    """Return a stream like standard output with PYTHONUNBUFFERED."""
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)  # type: ignore[type-var]


def test_every_byte_is_written_however_slowly_it_is_taken(pipe: tuple[int, int]) -> None:
    reader = Reader(pipe[0])
    with io.TextIOWrapper(WholeOutput(pipe[1]), "ascii", write_through=True) as stream:  # type: ignore[type-var]
        stream.write(PRINTED.decode())
    os.close(pipe[1])
    assert reader.join() == PRINTED


def test_every_record_is_written_however_slowly_it_is_taken(pipe: tuple[int, int]) -> None:
    reader = Reader(pipe[0])
    output = RecordOutput(unbuffered(pipe[1]), write_raw, Interrupts())
    output.write(RECORDS)
    assert output.batch.count == len(RECORDS)
    os.close(pipe[1])
    assert reader.join() == PRINTED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_whole_records_and_their_number(pipe: tuple[int, int], number: signal.Signals) -> None:
    reader = Reader(pipe[0], lambda: os.kill(os.getpid(), number))
    with signals_as_interrupts() as interrupts:
        output = RecordOutput(unbuffered(pipe[1]), write_raw, interrupts)
        with pytest.raises(KeyboardInterrupt) as raised:
            output.write(RECORDS)
    assert raised.value.args == (number,)
    os.close(pipe[1])
    found = reader.join()
    assert 0 < output.batch.count < len(RECORDS)
    assert found == b"".join(map(write_raw, RECORDS[: output.batch.count]))


def test_of_a_reader_that_went_away_it_is_known_what_was_sent_to_it(pipe: tuple[int, int]) -> None:
    reader = Reader(pipe[0], stops_at_half=True)
    output = RecordOutput(unbuffered(pipe[1]), write_raw, Interrupts())
    with pytest.raises(BrokenPipeError):
        output.write(RECORDS)
    read = reader.join().count(b"\n")
    assert read <= output.batch.count < len(RECORDS)


def test_what_a_full_disk_did_not_take_does_not_count() -> None:
    with open("/dev/full", "w") as full:
        output = RecordOutput(full, write_raw, Interrupts())
        with pytest.raises(OSError, match="No space left"):
            output.write(RECORDS)
    assert output.batch.count == 0


def test_records_without_bytes_are_written_with_those_before_them(pipe: tuple[int, int]) -> None:
    output = RecordOutput(unbuffered(pipe[1]), lambda record: b"a" if record.offset == 1 else b"", Interrupts())
    assert output.batch.count == 0
    output.write(RECORDS[:3])
    assert output.batch.count == 3
    output.forget()
    assert list(output.batch.records) == []
    assert os.read(pipe[0], 10) == b"a"
    os.close(pipe[0])


@pytest.mark.parametrize(("reason", "status"), [((), 130), ((signal.SIGTERM,), 143)])
def test_the_status_names_the_signal_as_a_shell_does(reason: tuple[signal.Signals, ...], status: int) -> None:
    @click.group(cls=BusGroup)
    def group() -> None:
        pass

    @group.command()
    def work() -> None:
        raise KeyboardInterrupt(*reason)

    assert CliRunner().invoke(group, ["work"]).exit_code == status
