"""The end of a program that never calls close()."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_broker import FakeBroker

PROGRAM = """
import sys
from bus import Consumer, Producer, TopicPartition
producer = Producer(sys.argv[1])
print(producer.send("t", b"a").result(50).offset)
consumer = Consumer(sys.argv[1], auto_offset_reset="earliest", fetch_max_wait_ms=60000)
consumer.assign([TopicPartition("t", 0)])
print(len(consumer.poll(20000)))
consumer.poll(10)
"""

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=100, env=environment, check=False
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


LINGERS = """
import sys
from bus import Producer
producer = Producer(sys.argv[1], linger_ms=60000)
producer.send("t", b"only one")
"""


def test_what_lingers_when_a_program_ends_is_delivered(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    done = run("-W", "error", "-c", LINGERS, broker.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert broker.cluster.topics["t"].partitions[0].values() == [b"only one"]


DEAD_BROKER = """
import sys, time
from bus import Producer
with Producer(sys.argv[1], linger_ms=0) as warm:
    warm.send("t", b"loads what a first record needs").result(50)
producers = [Producer(sys.argv[1], linger_ms=0, delivery_timeout_ms=1000, request_timeout_ms=1000) for _ in range(3)]
for producer in producers:
    producer.send("t", b"a").result(50)
print("sent", flush=True)
sys.stdin.readline()
for producer in producers:
    producer.send("t", b"b")
    producer.send("t", b"c")
"""


def test_program_that_ends_without_its_broker_ends_in_bounded_time_and_says_what_it_lost() -> None:
    with FakeBroker() as broker:
        broker.cluster.create("t")
        program = subprocess.Popen(
            [sys.executable, "-c", DEAD_BROKER, broker.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "sent\n"
    _, complaints = program.communicate("\n", timeout=100)
    assert program.returncode == 0
    assert complaints.count("could not deliver 2 records") == 3


FORK = """
import gc, os, sys
from bus import BusError, Producer
producer = Producer(sys.argv[1], linger_ms=60000)
producer.send("t", b"warm").add_done_callback(print)
producer.flush(20)
future = producer.send("t", b"parent")
child = os.fork()
if child == 0:
    for call in (
        lambda: producer.send("t", b"child"),
        lambda: producer.send("t", b"child", key=b"k"),
        lambda: producer.send_batch("t", __import__("pyarrow").table({"value": [b"child"]})),
        producer.flush,
    ):
        try:
            call()
            os._exit(2)
        except BusError as error:
            assert "belongs to process" in str(error), error
    producer.METHOD
    del producer, call
    gc.collect()
    import threading
    assert threading.active_count() == 1, threading.enumerate()
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), future.done())
producer.flush(20)
print(future.result(0).offset)
producer.close()
"""


@pytest.mark.parametrize("method", ["close()", "__exit__(None, None, None)", "_home"])
def test_child_of_a_fork_may_not_use_the_producer_and_harms_nothing(broker: FakeBroker, method: str) -> None:
    """`_home`: it does nothing, and forgets the producer."""
    broker.cluster.create("t")
    done = run("-c", FORK.replace("METHOD", method).replace(".add_done_callback(print)", ""), broker.address)
    assert (done.returncode, done.stdout) == (0, "0 False\n1\n"), done.stderr
    assert broker.cluster.topics["t"].partitions[0].values() == [b"warm", b"parent"]


FORK_WITH_LOCKS_HELD = """
import os, threading
from bus.client.producer import threads
from bus.client.producer import batch as produce_batch
from bus.client.producer import future as produce_future
from bus.client.producer.batch import RecordBatchBuilder
from bus.client.producer.future import BatchFuture
with produce_batch._lock, produce_future._lock:  # as another thread of the parent may
    child = os.fork()
    if child == 0:
        future = BatchFuture(1)
        future.add_done_callback(print)
        batch = RecordBatchBuilder("t", limit_bytes=1, due_at_ms=0, deadline_ms=0)
        batch.add(b"", None, None, None, 0, 1).add_done_callback(print)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_lock_that_another_thread_held_at_the_fork_does_not_stop_the_child() -> None:
    done = run("-c", FORK_WITH_LOCKS_HELD)
    assert done.stdout == "7\n", done.stderr
