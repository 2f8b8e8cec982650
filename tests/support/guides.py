"""The programs of a guide, and a run of its commands and programs in their order, as they stand there."""

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


def programs_of(name: str) -> list[str]:
    """Return the programs in Python that stand at the margin of a page, of which there is one at least."""
    programs = re.findall(r"^```python\n(.*?)^```$", (DOCS / name).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert programs, f"{name} shows a program"
    return programs


def run_guide(name: str, folder: Path, *options: str) -> str:
    """Return what the guide's blocks print, with a broker on `folder` and these options of `bus serve`."""
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
