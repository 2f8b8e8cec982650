"""The README's tour, block by block, as a reader types it: every command ends well, every program runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bus.spark
from bus.demo.__main__ import BrokerProcess, make_fresh_root

README = Path(__file__).parents[2] / "README.md"
DEFAULT_ADDRESS = "127.0.0.1:9094"
SERVE = "bus serve"


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block that is meant to be run, in order."""
    found = re.findall(r"^```(bash|python)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(language, text.strip()) for language, text in found]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    make_fresh_root(tmp_path / "bus-data")
    broker = BrokerProcess(tmp_path / "bus-data")
    yield broker
    broker.stop()


def test_every_block_of_the_tour_runs(tmp_path: Path, broker: BrokerProcess) -> None:
    tour = blocks()
    assert tour[0] == ("bash", SERVE), "the tour begins with a broker"
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "BUS_ADDRESS": broker.address,
        "JAVA_TOOL_OPTIONS": bus.spark.SHORT_SESSION["spark.driver.extraJavaOptions"],
    }
    said = []
    for language, text in tour[1:]:
        program = text.replace(DEFAULT_ADDRESS, broker.address)
        command = (
            [sys.executable, "-c", program] if language == "python" else ["bash", "-euo", "pipefail", "-c", program]
        )
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{text}\n\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)
    consumed = [json.loads(line) for line in said[0].splitlines() if line.startswith('{"topic"')]
    assert sorted(json.loads(record["value"])["item"] for record in consumed) == ["cups", "milk", "tea"]
    text = "".join(said)
    answers = re.findall(r'"key": "(\d+)", "orders": (\d+), "amount": (\d+)', text)
    assert sorted(answers) == [("42", "2", "6"), ("7", "1", "2")], text
    assert '"group_id": "billing", "topic": "orders", "lag": 3' in text
