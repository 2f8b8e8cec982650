"""A program: the example that counts words exactly once, as a member that is soon given up when it is silent.

python -m tests.support.counting_member ADDRESS TOPIC DATABASE CLIENT_ID
"""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path

from bus import BusError
from bus.errors import ErrorCode

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "exactly_once_by_stored_offset.py"


def main(address: str, topic: str, database: str, client_id: str) -> None:
    count = runpy.run_path(str(EXAMPLE))["count"]
    configs = {
        "client_id": client_id,
        "session_timeout_ms": 1_000,
        "heartbeat_interval_ms": 200,
        "max_poll_records": 100,
    }
    while True:
        try:
            count(address, topic, database, is_following=True, **configs)
        except BusError as error:
            if error.code is not ErrorCode.NETWORK_EXCEPTION:
                raise
            threading.Event().wait(0.1)  # the broker is down: who runs such a program starts it again


if __name__ == "__main__":
    main(*sys.argv[1:])
