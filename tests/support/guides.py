"""Runs the commands and programs of a guide in their order, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.broker_process import BrokerProcess

DOCS = Path(__file__).parents[2] / "docs"
DEFAULT_ADDRESS = "127.0.0.1:9094"
_BLOCK = re.compile(r"^( *)```(bash|python)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def run_guide(name: str, folder: Path, *options: str) -> str:
    """What its blocks print, with a broker on `folder` and these options of `bus serve`."""
    said = []
    with BrokerProcess(folder / "bus-data", *options) as broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BUS_ADDRESS": broker.address,
        }
        for _, language, text in _BLOCK.findall((DOCS / name).read_text("utf-8")):
            program = textwrap.dedent(text).replace(DEFAULT_ADDRESS, broker.address)
            command = (
                [sys.executable, "-c", program] if language == "python" else ["bash", "-euo", "pipefail", "-c", program]
            )
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            said.append(done.stdout)
    return "".join(said)
