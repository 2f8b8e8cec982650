"""SIGTERM where a command has to be put in order, and the status it ends with."""

from __future__ import annotations

import os
import signal
import threading

import click
import pytest
from click.testing import CliRunner

from bus.cli.groups import BusGroup
from bus.cli.interrupts import sigterm_as_interrupt


def test_sigterm_interrupts_the_block_and_the_handler_from_before_is_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as raised, sigterm_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.args == (signal.SIGTERM,)
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with sigterm_as_interrupt():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert found == [before]


@pytest.mark.parametrize(("reason", "status"), [((), 130), ((signal.SIGTERM,), 143)])
def test_the_status_names_the_signal_as_a_shell_does(reason: tuple[signal.Signals, ...], status: int) -> None:
    @click.group(cls=BusGroup)
    def group() -> None:
        pass

    @group.command()
    def work() -> None:
        raise KeyboardInterrupt(*reason)

    assert CliRunner().invoke(group, ["work"]).exit_code == status
