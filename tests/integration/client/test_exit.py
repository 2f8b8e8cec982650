"""What a program meets that never says close()."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.fake_broker import FakeBroker

PROGRAM = """
import sys
from bus import Consumer, Producer, TopicPartition
producer = Producer(sys.argv[1])
print(producer.send("t", b"a").result(20).offset)
consumer = Consumer(sys.argv[1], auto_offset_reset="earliest", fetch_max_wait_ms=60000)
consumer.assign([TopicPartition("t", 0)])
print(len(consumer.poll(20000)))
consumer.poll(10)
"""

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=40, env=environment, check=False
    )


def test_forgetting_to_close_neither_hangs_nor_complains(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    done = run("-W", "error", "-c", PROGRAM, broker.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n", "")


def test_importing_the_sdk_loads_no_engine_and_no_broker() -> None:
    heavy = ("duckdb", "deltalake", "pyspark", "pandas", "bus.runtime", "bus.storage_delta", "bus.broker")
    done = run("-c", f"import sys; from bus import *; print([name for name in {heavy!r} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_importing_a_rule_loads_no_sdk() -> None:
    done = run("-c", "import sys, bus.model; print('grpc' in sys.modules, 'pyarrow' in sys.modules)")
    assert done.stdout == "False False\n", done.stderr
