"""`bus produce` reports what it waits for, and counts what was acknowledged when it is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from bus.cli.records import produce
from bus.cli.records.produce import _Sending
from bus.client.producer.future import BatchFuture
from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode


class SlowFuture:
    """Without an outcome for as long as its caller has a time-out."""

    def __init__(self) -> None:
        self.time_outs: list[float | None] = []

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        self.time_outs.append(timeout)
        if timeout is not None:
            raise TimeoutError
        return []


def settle(count: int, *, is_quiet: bool) -> list[SlowFuture]:
    futures = [SlowFuture() for _ in range(count)]
    nowhere: Any = None
    sending = _Sending(nowhere, "orders", None, is_quiet)
    sending.futures.extend(futures)
    sending.settle_all()
    return futures


def test_missing_acknowledgements_are_told_once_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = settle(2, is_quiet=False)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("no acknowledgement for 10 s, still waiting: a quota (bus quotas usage) or ")
    assert (first.time_outs, second.time_outs) == ([10, None], [None])


def test_nothing_is_told_by_a_quiet_command(capsys: pytest.CaptureFixture[str]) -> None:
    (only,) = settle(1, is_quiet=True)
    assert (only.time_outs, capsys.readouterr().err) == ([None], "")


def test_a_command_that_is_ended_says_what_it_waits_for_and_counts_that_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(produce, "_ENDING_SECONDS_MAX", 0.001)
    only = BatchFuture(1)

    def interrupt(future: BatchFuture, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    nowhere: Any = None
    sending = _Sending(nowhere, "orders", None)
    sending.futures.append(only)
    with monkeypatch.context() as patch:
        patch.setattr(BatchFuture, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sending.settle_all()
    sending.report_unanswered()
    assert capsys.readouterr().err.startswith("waiting for the acknowledgement of 1 batch, ")
    only.resolve(0, BatchMetadata("orders", 0, 5, 2, -1, 7), None)
    sending.report_unanswered()
    assert capsys.readouterr().err == ""
    sending.settle_acknowledged()
    assert sending.record_count == 2


def test_a_command_that_is_ended_counts_what_was_acknowledged_and_nothing_else() -> None:
    acknowledged, failed, unanswered = BatchFuture(1), BatchFuture(1), BatchFuture(1)
    acknowledged.resolve(0, BatchMetadata("orders", 0, 5, 2, -1, 7), None)
    failed.resolve(0, None, BusError(ErrorCode.REQUEST_TIMED_OUT, "expected an answer, found none"))
    nowhere: Any = None
    sending = _Sending(nowhere, "orders", None)
    sending.futures.extend([unanswered, failed, acknowledged])
    sending.settle_acknowledged()
    assert (sending.record_count, sending.last[0].base_offset) == (2, 5)
