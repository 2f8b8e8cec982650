"""Programs that are members of a group, killed, paused and started again as a seed says.

Guards what a test of such a group must be able to rely on: a program that ends by itself, or does not end, fails the
test with what it said; at the end all run again, and none is left behind.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.forked_programs import ForkedProgram, start_program

REPOSITORY = Path(__file__).parents[2]


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s until {what}"
        threading.Event().wait(0.05)


def wait_until_holds(check: Callable[[], None], timeout_s: float = 60) -> None:
    """Repeat `check` until it asserts nothing wrong, for a state that may still change."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
        threading.Event().wait(0.05)


Command = Callable[[str, Path], Sequence[str]]  # of a member's name and journal: the arguments behind `python -m`


class MemberProcess:
    """One place in the group: its program may be started many times, each start with a journal of its own."""

    def __init__(self, name: str, folder: Path, command: Command) -> None:
        self.name = name
        self.journals: list[Path] = []
        self.is_paused = False
        self.rests_for = 0  # steps
        self._folder = folder
        self._command = command
        self._process: ForkedProgram | subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def said(self) -> Path:
        return self._folder / f"{self.name}.log"

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs"
        journal = self._folder / f"{self.name}.{len(self.journals)}"
        self.journals.append(journal)
        with self.said.open("ab") as said:
            self._process = start_program(
                self._command(self.name, journal), stdout=said.fileno(), stderr=said.fileno(), folder=REPOSITORY
            )

    def pause(self) -> None:
        """It does nothing more, and does not know it."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        process, self._process, self.is_paused = self._process, None, False
        if process is not None:
            process.kill()
            process.wait(timeout=100)

    def ask_to_end(self) -> None:
        """Once it is ready to be asked: it has begun its journal."""
        wait_until(lambda: self.journals[-1].exists(), f"{self.name} has begun")
        self._signal(signal.SIGTERM)

    def end_in_order(self) -> None:
        self.ask_to_end()
        self.wait_end()

    def go_on(self) -> None:
        """Run, whatever became of it."""
        if not self.is_running:
            self.start()
        elif self.is_paused:
            self.resume()

    def wait_end(self) -> None:
        assert self._process is not None, f"{self.name} does not run"
        try:
            code = self._process.wait(timeout=100)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGUSR1)
            wait_until(lambda: "most recent call first" in self.said.read_text(), "it says where it is")
            pytest.fail(f"{self.name} does not end\n{self.said.read_text()}")
        self._process = None
        assert code == 0, f"{self.name} ended with {code}\n{self.said.read_text()}"

    def check_alive(self) -> None:
        if self._process is not None:
            code = self._process.poll()
            assert code is None, f"{self.name} ended by itself with {code}\n{self.said.read_text()}"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(number)


Harm = Callable[[MemberProcess], None]
HARMS: Sequence[Harm] = (MemberProcess.kill, MemberProcess.pause, MemberProcess.pause, MemberProcess.end_in_order)


class MemberProcesses:
    """A context: all are started at its beginning, and none is left at its end."""

    def __init__(self, count: int, folder: Path, command: Command, harms: Sequence[Harm] = HARMS) -> None:
        folder.mkdir()
        self._harms = harms
        self.members = [MemberProcess(f"member-{number}", folder, command) for number in range(count)]

    @property
    def journals(self) -> list[Path]:
        return [journal for member in self.members for journal in member.journals if journal.exists()]

    def disturb(self, chance: random.Random) -> None:
        """A step: what rested long enough goes on, and one that runs, if there is one, has something happen to it."""
        self.check_alive()
        for member in self.members:
            member.rests_for -= 1
            if member.rests_for == 0:
                member.go_on()
        harmed = chance.choice(self.members)
        harm = chance.choice(self._harms)
        rests_for = chance.randint(1, 8)
        if harmed.is_running and not harmed.is_paused:
            harm(harmed)
            harmed.rests_for = rests_for

    def heal(self) -> None:
        """All run again."""
        for member in self.members:
            member.go_on()

    def check_alive(self) -> None:
        for member in self.members:
            member.check_alive()

    def end_in_order(self) -> None:
        for member in self.members:
            member.ask_to_end()
        for member in self.members:
            member.wait_end()

    def __enter__(self) -> MemberProcesses:
        for member in self.members:
            member.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()
