"""The commands and programs of the guide to groups, run in their order as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess

GUIDE = Path(__file__).parents[2] / "docs" / "groups.md"
DEFAULT_ADDRESS = "127.0.0.1:9094"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(bash|python)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    bin_folder = Path(sys.executable).parent
    said = []
    with BrokerProcess(tmp_path / "bus-data", "--set", "group.initial.rebalance.delay.ms=0") as broker:
        environment = {
            **os.environ,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "BUS_ADDRESS": broker.address,
        }
        for language, text in blocks():
            program = text.replace(DEFAULT_ADDRESS, broker.address)
            command = (
                [sys.executable, "-c", program] if language == "python" else ["bash", "-euo", "pipefail", "-c", program]
            )
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            said.append(done.stdout)
    text = "".join(said)
    assert '"committed_offset": 3' in text, "the history has the commit of the first run"
    assert "deleted group billing-2" in text
    assert text.rstrip().endswith('"members": 0}]')
