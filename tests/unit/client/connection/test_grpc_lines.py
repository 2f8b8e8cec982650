"""A client writes nothing of gRPC's own on stderr, unless its program wants that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The core has an ERROR line for such an address.
PROGRAM = """
import os
import bus
for client in (bus.Producer, bus.Consumer, bus.Admin, bus.aio.Producer):
    assert client
import grpc
assert os.environ.get("GRPC_VERBOSITY") == {verbosity!r}
grpc.insecure_channel("ipv4:999.1.1.1:1").close()
"""


@pytest.mark.parametrize(("verbosity", "is_quiet"), [(None, True), ("ERROR", False)])
def test_grpc_writes_nothing_by_itself_unless_the_program_says_so(verbosity: str | None, is_quiet: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if verbosity is not None:
        environment["GRPC_VERBOSITY"] = verbosity
    program = PROGRAM.format(verbosity=verbosity).replace("import bus\n", "import bus, bus.aio\n")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (done.stderr == "") is is_quiet, done.stderr
