"""Clients and processes: a child of a fork leaves those of its parent alone, and makes its own where that can work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bus import Admin, BusError, Consumer, Producer
from tests.support.fake_broker import FakeBroker

ROOT = Path(__file__).parents[3]
WAIT_S = 100


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a file: children that are not forked import it."""
    path = folder / "program.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=environment,
        check=False,
    )


def run_until_grpc_survives(
    folder: Path, program: str, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run it again where a signal ended the child: gRPC aborts some children of a fork, which says nothing of ours.
    Returns the last run, and how many there were."""
    runs = 0
    while True:
        runs += 1
        done = run(folder, program, *arguments)
        if runs == 5 or not done.stdout.startswith("child -"):
            return done, runs


USE_IN_A_CHILD = """
import asyncio, gc, os, sys
from bus import Admin, BusError, Consumer, Producer, TopicPartition
from bus.aio import Consumer as AsyncConsumer, Producer as AsyncProducer
address = sys.argv[1]
CONSUMER = dict(auto_offset_reset="earliest", group_id="g")
consumer = Consumer(address, **CONSUMER)
consumer.subscribe(["t"])
while not consumer.poll(100, 1):
    pass
generation = consumer.group_metadata()
admin = Admin(address)
admin.describe_topics(["t"])

async def at_work():
    producer, async_consumer = AsyncProducer(address), AsyncConsumer(address, auto_offset_reset="earliest")
    await producer.send("t", b"parent")
    await async_consumer.assign([TopicPartition("t", 0)])
    child = os.fork()
    if child == 0:
        def refused(do, expected):
            try:
                do()
            except BusError as error:
                assert expected in str(error), error
            else:
                os._exit(2)
        for do in (
            lambda: consumer.poll(1000), lambda: next(consumer), consumer.commit, lambda: consumer.subscribe(["u"]),
            consumer.unsubscribe, lambda: consumer.beginning_offsets([TopicPartition("t", 0)]),
            lambda: admin.describe_topics(["t"]), lambda: admin.list_groups(),
            lambda: producer.send("t", b"child"),
            lambda: async_consumer.poll().send(None),
        ):
            refused(do, "belongs to process")
        for client in (Producer, Consumer, Admin, AsyncProducer, AsyncConsumer):
            refused(lambda: client(address), "gRPC does not survive")
        consumer.wakeup()
        for close in (producer.close, async_consumer.close):
            try:
                close().send(None)
            except StopIteration:
                pass
        DROP
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("child", os.waitstatus_to_exitcode(status))
    await producer.send("t", b"parent")
    await producer.close()
    await async_consumer.close()

def drop():
    global consumer, admin
    consumer.close()
    admin.close()
    del consumer, admin

def forget():
    global consumer, admin
    del consumer, admin

asyncio.run(at_work())
while len(consumer.poll(100, 1)) == 0:
    pass
assert consumer.group_metadata() == generation, "still the same member"
consumer.commit()
consumer.close()
admin.close()
print("done")
"""


LEAVE_BY_EXIT = """
import os, sys
from bus import Admin, Consumer, Producer
address = sys.argv[1]
producer = Producer(address)
producer.send("t", b"parent").result(30)
consumer = Consumer(address, auto_offset_reset="earliest", group_id="g")
consumer.subscribe(["t"])
while not consumer.poll(100, 1):
    pass
generation = consumer.group_metadata()
admin = Admin(address)
admin.describe_topics(["t"])
child = os.fork()
if child == 0:
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
producer.send("t", b"parent").result(30)
while not consumer.poll(100, 1):
    pass
assert consumer.group_metadata() == generation, "still the same member"
admin.describe_topics(["t"])
for client in (producer, consumer, admin):
    client.close()
print("done")
"""


def test_child_of_a_fork_that_ends_as_programs_do_tells_the_broker_nothing(broker: FakeBroker, tmp_path: Path) -> None:
    broker.cluster.create("t")
    done, runs = run_until_grpc_survives(tmp_path, LEAVE_BY_EXIT, broker.address)
    assert done.stdout.splitlines() == ["child 0", "done"], done.stderr
    assert broker.calls.count("LeaveGroup") <= runs, "that of each parent's close"


@pytest.mark.parametrize("drop", ["drop()", "forget()"])
def test_child_of_a_fork_is_refused_each_client_by_name_and_its_end_tells_the_broker_nothing(
    broker: FakeBroker, tmp_path: Path, drop: str
) -> None:
    broker.cluster.create("t")
    with Producer(broker.address) as producer:
        for _ in range(2):
            producer.send("t", b"x").result(WAIT_S)
    done, runs = run_until_grpc_survives(tmp_path, USE_IN_A_CHILD.replace("DROP", drop), broker.address)
    assert done.stdout.splitlines() == ["child 0", "done"], done.stderr
    assert broker.calls.count("LeaveGroup") <= runs, "that of each parent's close"


MAKE_IN_CHILDREN = """
import multiprocessing, os, sys
from bus import Consumer, Producer

def work(address, number):
    with Producer(address) as producer:
        topic = producer.send("t", b"%d" % number).result(30).topic
        os.write(1, f"{topic}\\n".encode())  # at once: `print` may write the end of the line by itself

if __name__ == "__main__":
    address, method, parent = sys.argv[1:]
    if parent != "makes none":
        client = Producer(address)
        client.send("t", b"parent").result(30)
        if parent == "closes its own":
            client.close()
    context = multiprocessing.get_context(method)
    children = [context.Process(target=work, args=(address, number)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(50)
    print([child.exitcode for child in children])
    if parent == "keeps its own":
        client.send("t", b"parent").result(30)
        client.close()
"""


@pytest.mark.parametrize(
    ("method", "parent"),
    [
        ("fork", "makes none"),
        ("spawn", "keeps its own"),
        ("forkserver", "keeps its own"),
    ],
)
def test_children_make_clients_of_their_own_by_each_start_method(
    broker: FakeBroker, tmp_path: Path, method: str, parent: str
) -> None:
    broker.cluster.create("t")
    done = run(tmp_path, MAKE_IN_CHILDREN, broker.address, method, parent)
    assert sorted(done.stdout.splitlines()) == sorted(["t", "t", "t", "[0, 0, 0]"]), done.stderr


@pytest.mark.parametrize("parent", ["keeps its own", "closes its own"])
def test_children_of_a_fork_whose_parent_has_connected_a_client_are_refused_their_own_by_name(
    broker: FakeBroker, tmp_path: Path, parent: str
) -> None:
    """Closing the client in the parent does not help: gRPC ends in the background, and a child that is forked before it
    has ended may abort or hang."""
    broker.cluster.create("t")
    done = run(tmp_path, MAKE_IN_CHILDREN, broker.address, "fork", parent)
    assert done.stdout == "[1, 1, 1]\n", done.stderr
    assert "start processes with spawn or forkserver" in done.stderr


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
@pytest.mark.parametrize(
    ("module", "attribute"), [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")]
)
def test_where_threads_are_replaced_by_greenlets_clients_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, client: type[Producer | Consumer | Admin], module: str, attribute: str
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{attribute: lambda name: name == "thread"}))
    with pytest.raises(BusError, match=module.split(".", maxsplit=1)[0]):
        client("127.0.0.1:1")


def test_a_library_of_greenlets_that_has_replaced_nothing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: False))
    Admin("127.0.0.1:1").close()


SPILLED_BY_THE_PARENT = """
import os, sys
from pathlib import Path
from bus.sql.connection import open_engine
engine = open_engine(Path(sys.argv[1]))
folder = engine.execute("SELECT current_setting('temp_directory')").fetchone()[0]
child = os.fork()
if child == 0:
    del engine
    raise SystemExit(0)
os.waitpid(child, 0)
print(os.path.isdir(folder))
"""


def test_child_of_a_fork_does_not_take_away_what_its_parents_engine_has_spilled(tmp_path: Path) -> None:
    done = run(tmp_path, SPILLED_BY_THE_PARENT, str(tmp_path))
    assert done.stdout == "True\n", done.stderr


TRIAL_OF_THE_PARENT = """
import os
from bus.storage_delta.files.trials import TRIALS, _Child
TRIALS._child = _Child()
child = os.fork()
if child == 0:
    raise SystemExit(0)
os.waitpid(child, 0)
print(TRIALS._child._process.poll())
"""


def test_child_of_a_fork_does_not_end_the_process_in_which_its_parent_tries_files(tmp_path: Path) -> None:
    done = run(tmp_path, TRIAL_OF_THE_PARENT)
    assert done.stdout == "None\n", done.stderr
