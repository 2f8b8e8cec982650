"""What a process of the bus asks of its system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from bus.process_tuning import tune_process
tune_process()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_broker_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
