"""SIGTERM and SIGHUP end what Ctrl-C ends, in the same order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import click
import pytest
from click.testing import CliRunner

from bus.cli.commands import BusGroup
from bus.demo import __main__ as demo
from bus.jobs.commands import run_job
from bus.platform.signals import Interrupts, signals_as_interrupts, uninterrupted

ENDING = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def test_held_interrupts_come_when_they_are_held_no_more() -> None:
    done = []

    def work(interrupts: Interrupts) -> None:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("held")
        done.append("never")

    with signals_as_interrupts() as interrupts, pytest.raises(KeyboardInterrupt) as raised:
        work(interrupts)
    assert (done, raised.value.args) == (["held"], (signal.SIGTERM,))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_interrupts_the_block_and_the_handler_from_before_is_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as raised, signals_as_interrupts():
        os.kill(os.getpid(), number)
    assert raised.value.args == (number,)
    assert signal.getsignal(number) is before


def test_sighup_stays_ignored_where_it_was() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with signals_as_interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert found == [before]


def test_a_block_within_another_is_the_same_one() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_as_interrupts() as outer:
        with signals_as_interrupts() as inner:
            assert inner is outer
        assert signal.getsignal(signal.SIGTERM) == outer.take
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [number for number, _ in ENDING])
def test_signal_does_not_tear_a_step_of_a_producer(number: signal.Signals) -> None:
    """A record that is in neither of two places would get no outcome."""
    done = []

    def work() -> None:
        with uninterrupted:
            os.kill(os.getpid(), number)
            done.append("step")
        done.append("never")

    with pytest.raises(KeyboardInterrupt) as raised, signals_as_interrupts():
        work()
    assert (done, raised.value.args) == (["step"], (number,))


@pytest.mark.parametrize(("number", "status"), ENDING)
def test_every_command_is_ended_in_order_by_a_signal(number: signal.Signals, status: int) -> None:
    done = []

    @click.group(cls=BusGroup)
    def group() -> None:
        pass

    @group.command()
    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            done.append("never")
        finally:
            done.append("ended")

    assert CliRunner().invoke(group, ["work"]).exit_code == status
    assert done == ["ended"]


@pytest.mark.parametrize(("number", "status"), ENDING)
def test_the_demo_stops_its_broker_at_a_signal(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "check_extra", lambda extra: None)
    monkeypatch.setattr(demo.Demo, "run", lambda *_, **__: os.kill(os.getpid(), number))
    assert demo.main([]) == status
    assert "Interrupted; the broker is stopped" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "status"), ENDING)
def test_a_job_stops_its_session_at_a_signal(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    class Session:
        def stop(self) -> None:
            stopped.append(True)

    def body(_: object) -> int:
        os.kill(os.getpid(), number)
        return 0

    @click.group(cls=BusGroup)
    def group() -> None:
        pass

    @group.command()
    def job() -> int:
        return run_job("job", body)

    monkeypatch.setattr("bus.spark.sessions.session", lambda *_, **__: Session())
    ended = CliRunner().invoke(group, ["job"])
    assert (ended.exit_code, stopped, ended.stderr) == (status, [True], "")


def test_while_the_command_is_loaded_ctrl_c_has_no_traceback() -> None:
    program = (
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'bus.cli.main': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "import bus.__main__\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")
