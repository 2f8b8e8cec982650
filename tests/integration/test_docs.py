"""The programs in the guides run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bus import Admin, NewTopic
from tests.support.broker_thread import running_broker
from tests.support.guides import DEFAULT_ADDRESS, DOCS, programs_of


def test_program_of_the_administrators_page_runs(tmp_path: Path) -> None:
    [program] = programs_of("admin.md")
    with running_broker(tmp_path / "root") as broker:
        command = [sys.executable, "-c", program.replace(DEFAULT_ADDRESS, f"127.0.0.1:{broker.port}")]
        done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines() == [
        "retention.ms 3600000 default: 604800000",
        "parcels-0 ends at 0",
        "parcels-1 ends at 0",
    ], done.stderr
    assert done.returncode == 0


def test_programs_of_the_producers_guide_run(tmp_path: Path) -> None:
    programs = programs_of("producer.md")
    with running_broker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("payments", partitions=2)])
        for program in programs:
            command = [sys.executable, "-c", program.replace(DEFAULT_ADDRESS, address)]
            done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=100, check=False)
            told = "" if "transactional_id" in program else "None\n2.0\n"
            assert (done.returncode, done.stdout) == (0, told), done.stderr
