"""`bus cluster` with brokers in processes of their own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from bus import Admin, Consumer, NewTopic, Producer
from bus.cli.cluster.cluster_processes import LocalCluster, StartingBroker
from bus.cli.failures import Failure
from bus.cli.main import cli
from bus.cluster_metadata.cluster_state import LEVEL_MAX
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from tests.support.broker_process import free_port
from tests.support.member_processes import wait_until_holds

SETTINGS = ("--set", "offsets.topic.num.partitions=1", "--set", "group.initial.rebalance.delay.ms=0")


class Cluster:
    """Runs `bus` with the root and the addresses of a cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"BUS_ROOT": str(root)}

    def run(self, *arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=text, env=self.environment, prog_name="bus")

    def done(self, *arguments: str, text: str | None = None) -> Result:
        result = self.run(*arguments, text=text)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        return result.stderr

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own, since the brokers are to be children of one that has ended."""
        return subprocess.run(
            [sys.executable, "-m", "bus", "cluster", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def up(self, *arguments: str) -> str:
        started = self.start("up", *arguments)
        assert started.returncode == 0, started.stderr
        exported = dict(line.removeprefix("export ").split("=") for line in started.stdout.splitlines())
        assert exported["BUS_ROOT"] == str(self.root)
        self.environment["BUS_ADDRESS"] = exported["BUS_ADDRESS"]
        return started.stderr

    def pid(self, broker_id: int) -> int:
        return LocalCluster(self.root).find(broker_id).pid

    def brokers(self) -> list[dict[str, Any]]:
        (described,) = json.loads(self.done("cluster", "describe").stdout)
        return list(described["brokers"])

    def troubles(self) -> tuple[bool, set[tuple[str, int]]]:
        """Return whether `cluster describe` counts under-replicated partitions, and those of the users' topics. Raises
        `AssertionError` if commands contradict each other, as they do while one broker follows the metadata late."""
        (described,) = json.loads(self.done("cluster", "describe").stdout)
        assert described["offline_partitions"] == 0
        assert json.loads(self.done("topics", "describe", "--unavailable").stdout) == []
        topics = json.loads(self.done("topics", "describe", "--under-replicated").stdout)
        assert json.loads(self.done("topics", "describe", "--under-min-isr").stdout) == []  # 1, which the leader is
        found = {(topic["topic"], one["partition"]) for topic in topics for one in topic["partitions"]}
        assert described["under_replicated_partitions"] == len(found)
        return bool(found), {(topic, number) for topic, number in found if not topic.startswith("__")}

    def controller(self) -> int:
        (described,) = json.loads(self.done("cluster", "describe").stdout)
        return int(described["controller_id"])

    def produce(self, value: str) -> None:
        """Into a partition that its value decides."""
        self.done("produce", "t", "--key-separator", ":", text=f"{value}:{value}\n")

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Each command may be answered by another broker, which follows the metadata a moment behind others."""
        deadline_s = time.monotonic() + 100
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def wait_until_leaders_are(self, counts: list[int]) -> None:
        self.wait_until(lambda: [one["leader_count"] for one in self.brokers()] == counts)

    def wait_until_fenced(self, broker_id: int) -> None:
        self.wait_until(lambda: broker_id in [one["broker_id"] for one in self.brokers() if one["is_fenced"]])

    def end(self) -> None:
        if self.root.exists():
            cluster = LocalCluster(self.root)
            for broker_id in cluster.running():
                cluster.send(broker_id, signal.SIGKILL)
                cluster.wait_until_gone(broker_id, 60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "root")
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def three_brokers(cluster: Cluster) -> Cluster:
    cluster.up("--brokers", "3", "--port", "0", "--rack", "a,b", *SETTINGS)
    return cluster


@pytest.mark.timeout(400)
def test_broker_is_started_paused_restarted_killed_and_stopped(cluster: Cluster) -> None:
    port = str(free_port())
    assert "broker 0: ready at 127.0.0.1:" + port in cluster.up("--brokers", "1", "--port", port, *SETTINGS)
    first = cluster.pid(0)
    cluster.done("topics", "create", "t")
    assert "broker 0 runs already" in cluster.up()
    assert cluster.pid(0) == first

    cluster.done("cluster", "pause", "0")
    cluster.wait_until(lambda: Path(f"/proc/{first}/stat").read_text().split()[2] == "T")
    assert "broker 0 runs already, but is paused; let it go on with: bus cluster resume 0" in cluster.up()
    cluster.done("cluster", "resume", "0")
    cluster.done("produce", "t", text="a\n")

    assert "broker 0: ready" in cluster.start("restart").stderr
    second = cluster.pid(0)
    assert second != first
    cluster.done("produce", "t", text="b\n")

    assert f"killed (pid {second})" in cluster.done("cluster", "kill", "0").stderr
    assert "broker 0 does not run; start it with: bus cluster up" in cluster.refused("cluster", "kill", "0")
    cluster.up()
    assert cluster.environment["BUS_ADDRESS"] == f"127.0.0.1:{port}"
    assert json.loads(cluster.done("config", "offsets.topic.num.partitions").stdout)[0]["value"] == "1"
    assert cluster.done("consume", "t", "--exit", "--from", "beginning").stdout == "a\nb\n"

    cluster.done("cluster", "pause", "0")
    assert "broker 0: stopped" in cluster.done("cluster", "down").stderr
    assert "no broker runs" in cluster.done("cluster", "down").stderr
    assert "expected a broker of" in cluster.refused("cluster", "pause", "7")


@pytest.mark.timeout(400)
def test_cluster_survives_its_brokers_one_after_another(three_brokers: Cluster) -> None:
    cluster = three_brokers
    cluster.done("topics", "create", "t", "--partitions", "6")
    cluster.wait_until_leaders_are([2, 2, 2])
    assert [one["replica_count"] for one in cluster.brokers()] == [6] * 3
    assert [one["rack"] for one in cluster.brokers()] == ["a", "b", "a"]
    cluster.produce("0")

    controller = cluster.controller()
    cluster.done("cluster", "kill", str(controller))
    cluster.produce("1")
    cluster.wait_until(lambda: [one["is_fenced"] for one in cluster.brokers()].count(True) == 1)

    def check_the_other_two() -> None:
        assert cluster.controller() != controller
        assert cluster.troubles() == (True, {("t", number) for number in range(6)})
        assert sum(one["leader_count"] for one in cluster.brokers() if not one["is_fenced"]) == 6

    wait_until_holds(check_the_other_two)
    assert f"broker {controller}: ready" in cluster.up()

    other = next(one for one in range(3) if one not in (controller, cluster.controller()))
    cluster.done("cluster", "pause", str(other))
    cluster.produce("2")
    cluster.wait_until_fenced(other)
    cluster.done("cluster", "resume", str(other))
    cluster.wait_until(lambda: not any(one["is_fenced"] for one in cluster.brokers()))

    def check_all_three() -> None:
        assert cluster.troubles() == (False, set())

    wait_until_holds(check_all_three)
    cluster.done("cluster", "elect-leaders")
    cluster.wait_until_leaders_are([2, 2, 2])

    pids = [cluster.pid(broker_id) for broker_id in range(3)]
    restarted = cluster.start("restart")
    assert restarted.returncode == 0, restarted.stderr
    assert restarted.stderr.count(": ready at") == 3
    assert not {*pids} & {cluster.pid(broker_id) for broker_id in range(3)}
    cluster.wait_until_leaders_are([2, 2, 2])
    cluster.produce("3")
    assert sorted(cluster.done("consume", "t", "--exit", "--from", "beginning").stdout.split()) == ["0", "1", "2", "3"]

    cluster.done("topics", "create", "two", "--partitions", "3", "--replication-factor", "2")
    cluster.done("topics", "create", "told", "--replica-assignment", "2:0,1:2")
    told = json.loads(cluster.done("topics", "describe", "two", "told", "--format", "json").stdout)
    replicas = {topic["topic"]: [one["replicas"] for one in topic["partitions"]] for topic in told}
    assert [len(one) for one in replicas["two"]] == [2, 2, 2]
    assert replicas["told"] == [[2, 0], [1, 2]]
    assert "from 1 to 3, the brokers of the cluster, found 4" in cluster.refused(
        "topics", "create", "four", "--replication-factor", "4"
    )
    stopped = cluster.done("cluster", "down").stderr
    assert stopped.count("stopped") == 3


@pytest.mark.timeout(400)
def test_clients_go_on_at_other_brokers_while_one_hangs(three_brokers: Cluster) -> None:
    """The time-outs of the clients are longer than the test: what goes on does so because they ask another broker."""
    cluster = three_brokers
    addresses, times = cluster.environment["BUS_ADDRESS"], {"request_timeout_ms": 600_000}
    admin, producer = Admin(addresses, **times), Producer(addresses, delivery_timeout_ms=900_000, **times)
    consumer = Consumer(addresses, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, **times)
    with admin, producer, consumer:
        admin.create_topics([NewTopic("t", 6)])
        consumer.subscribe(["t"])
        sent: list[Any] = []
        read: list[Any] = []

        def send_and_read() -> None:
            futures = [producer.send("t", b"%d" % (len(sent) + number), partition=number) for number in range(6)]
            sent.extend((number, future.result(120)) for number, future in enumerate(futures))
            cluster.wait_until(lambda: read.extend(consumer.poll(100)) or len(read) >= len(sent))

        send_and_read()
        for turn in range(2):
            hanging = admin.describe_groups(["g"])["g"].coordinator.broker_id
            cluster.done("cluster", "pause", str(hanging))
            send_and_read()
            consumer.commit()
            admin.create_topics([NewTopic(f"u{turn}", 1)])
            cluster.wait_until_fenced(hanging)
            cluster.done("cluster", "resume", str(hanging))
            cluster.wait_until(lambda: not any(one["is_fenced"] for one in cluster.brokers()))
            send_and_read()
        assert [(record.partition, record.offset) for record in sorted(read)] == sorted(
            (number, metadata.offset) for number, metadata in sent
        )
        assert sorted(int(record.value) for record in read) == list(range(len(sent)))
        consumer.commit()
        committed = admin.list_group_offsets("g")
    assert [(one.partition, offset.offset) for one, offset in sorted(committed.items())] == [
        (number, len(sent) // 6) for number in range(6)
    ]


@pytest.mark.timeout(400)
def test_leader_that_stood_still_answers_nothing_of_before(three_brokers: Cluster) -> None:
    cluster = three_brokers
    cluster.done("topics", "create", "t", "--partitions", "6")
    cluster.produce("0")
    (described,) = json.loads(cluster.done("topics", "describe", "t").stdout)
    controller = cluster.controller()
    partition, leader = next(
        (one["partition"], one["leader"]) for one in described["partitions"] if one["leader"] != controller
    )
    address = next(f"{one['host']}:{one['port']}" for one in cluster.brokers() if one["broker_id"] == leader)
    latest = pb.ListOffsetsPartition(topic="t", partition=partition, timestamp_ms=-1)
    request = pb.ListOffsetsRequest(partitions=[latest])
    with grpc.insecure_channel(address) as channel:
        stub = bus_pb2_grpc.BusStub(channel)
        (before,) = stub.ListOffsets(request, timeout=30).partitions
        assert before.error_code == pb.ERROR_CODE_NONE
        cluster.done("cluster", "pause", str(leader))
        cluster.wait_until_fenced(leader)
        cluster.done("produce", "t", "--partition", str(partition), text="later\n")
        asked = [stub.ListOffsets.future(request, timeout=30) for _ in range(20)]
        cluster.done("cluster", "resume", str(leader))
        for answer in asked:
            (found,) = answer.result().partitions
            assert found.error_code == pb.ERROR_CODE_NOT_LEADER_OR_FOLLOWER or found.offset > before.offset


@pytest.mark.timeout(400)
def test_topic_with_min_insync_replicas_waits_for_followers_and_refuses_without_them(three_brokers: Cluster) -> None:
    cluster = three_brokers
    config = ("--config", "min.insync.replicas=2")
    assert "from 1 to 3" in cluster.refused("topics", "create", "u", "--config", "min.insync.replicas=4")
    cluster.done("topics", "create", "t", *config)
    for value in ("0", "1", "2"):
        cluster.produce(value)
    (described,) = json.loads(cluster.done("topics", "describe", "t").stdout)
    leader = described["partitions"][0]["leader"]
    followers = [one for one in range(3) if one != leader]
    cluster.done("cluster", "kill", *map(str, followers))
    cluster.wait_until(lambda: [one["is_fenced"] for one in cluster.brokers()].count(True) == 2)
    late = cluster.run(
        *("produce", "t", "-X", "delivery.timeout.ms=6000", "-X", "request.timeout.ms=3000", "-X", "linger.ms=0"),
        text="3\n",
    )
    assert late.exit_code == 1
    assert "NOT_ENOUGH_REPLICAS" in late.stderr
    cluster.up()
    cluster.produce("4")
    assert cluster.done("consume", "t", "--exit", "--from", "beginning").stdout.split() == ["0", "1", "2", "4"]


@pytest.mark.timeout(400)
def test_broker_stops_though_another_one_that_follows_it_hangs(three_brokers: Cluster) -> None:
    cluster = three_brokers
    cluster.done("topics", "create", "t", "--partitions", "6")
    cluster.produce("0")
    hanging, stopping = [one for one in range(3) if one != cluster.controller()]
    cluster.done("cluster", "pause", str(hanging))
    cluster.wait_until(lambda: hanging in [one["broker_id"] for one in cluster.brokers() if one["is_fenced"]])
    cluster.done("cluster", "down", str(stopping), "--timeout", "15")


@pytest.mark.timeout(400)
def test_partitions_are_moved_and_a_broker_leaves(three_brokers: Cluster, tmp_path: Path) -> None:
    cluster, plan = three_brokers, tmp_path / "plan.json"
    cluster.done("topics", "create", "t", "--partitions", "6")
    cluster.produce("0")
    generated = cluster.done("cluster", "reassign", "generate", "t", "--brokers", "1,2", "--replicas", "1")
    plan.write_text(generated.stdout)
    assert [one["replicas"] for one in json.loads(generated.stdout)["partitions"]] == [[1], [2]] * 3
    verified = cluster.run("cluster", "reassign", "verify", str(plan))
    assert verified.exit_code == 1
    assert "t-0 is not completed: expected replicas [1], found [0, 1, 2]" in verified.stdout
    cluster.done("cluster", "reassign", "execute", str(plan))
    assert cluster.done("cluster", "reassign", "verify", str(plan)).stdout.count("is completed") == 6
    assert "0 reassignments cancelled" in cluster.done("cluster", "reassign", "cancel", str(plan)).stderr
    (described,) = json.loads(cluster.done("topics", "describe", "t").stdout)
    assert [(one["leader"], one["replicas"]) for one in described["partitions"]] == [(1, [1]), (2, [2])] * 3

    # Any broker takes a change, and knows of it when it answers.
    follower = next(one for one in cluster.brokers() if one["broker_id"] != cluster.controller())
    with grpc.insecure_channel(f"{follower['host']}:{follower['port']}") as channel:
        stub = bus_pb2_grpc.BusStub(channel)
        moved = pb.PartitionReassignment(topic="t", partition=1, replica_ids=[1, 0])
        answer = stub.AlterPartitionReassignments(pb.AlterPartitionReassignmentsRequest(partitions=[moved]))
        assert [one.error_code for one in answer.partitions] == [pb.ERROR_CODE_NONE]
        (topic,) = stub.Metadata(pb.MetadataRequest(topics=["t"])).topics
        assert [(one.leader_id, list(one.replica_ids)) for one in topic.partitions][1] == (1, [1, 0])

    assert "broker 1: unregistered" in cluster.done("cluster", "decommission", "1").stderr
    (described,) = json.loads(cluster.done("topics", "describe", "t").stdout)
    assert {one["leader"] for one in described["partitions"]} == {0, 2}
    assert [one["broker_id"] for one in cluster.brokers()] == [0, 2]
    cluster.produce("1")
    assert "broker 1" not in cluster.up()
    assert sorted(cluster.done("consume", "t", "--exit", "--from", "beginning").stdout.split()) == ["0", "1"]
    assert "expected a broker of the cluster, 0, 2, found 1" in cluster.refused("cluster", "decommission", "1")

    (feature,) = json.loads(cluster.done("cluster", "features", "describe").stdout)
    assert feature["finalized"] == feature["supported_max"] == LEVEL_MAX
    assert f"is finalized at level {LEVEL_MAX}" in cluster.done("cluster", "features", "upgrade").stderr
    assert "INVALID_UPDATE_VERSION" in cluster.refused("cluster", "features", "upgrade", "--level", "9")


@pytest.mark.timeout(600)
def test_commands_of_the_guide_run_as_they_stand_there(cluster: Cluster, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text("utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    script = re.sub(r"(cluster up --brokers \d.*?)(?=\)|$)", r"\1 --port 0", "".join(blocks), flags=re.MULTILINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", 'bus() { python -m bus "$@"; }\n' + script]
    environment = {**os.environ, **cluster.environment, "PATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"tea", "cups", "milk", "sugar", "spoons"} <= set(done.stdout.split())
    assert "broker 3: unregistered" in done.stderr


def test_broker_that_cannot_start_shows_the_end_of_its_log(cluster: Cluster) -> None:
    started = cluster.start("up", "--brokers", "1", "--port", "0", "--set", "num.partitons=3")
    said = started.stderr
    assert started.returncode == 1
    assert "broker 0 ended with status 1 before it was ready; the end of" in said
    assert "num.partitions" in said


def test_interrupted_start_ends_every_broker_that_it_has_started(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[StartingBroker] = []
    wait_ready = StartingBroker.wait_ready

    def interrupt_the_second_wait(broker: StartingBroker, timeout_s: float) -> None:
        started.append(broker)
        if len(started) == 2:
            raise KeyboardInterrupt(signal.SIGTERM)
        wait_ready(broker, timeout_s)

    monkeypatch.setattr(StartingBroker, "wait_ready", interrupt_the_second_wait)
    result = cluster.run("cluster", "up", "--brokers", "3", "--port", "0", *SETTINGS)
    assert result.exit_code == 128 + signal.SIGTERM
    told = [line for line in result.stderr.splitlines() if "stopped" in line]
    assert told == [f"broker {broker_id}: stopped before all were ready" for broker_id in (2, 1, 0)]
    assert LocalCluster(cluster.root).running() == []
    log = (cluster.root / "cluster" / "broker-0.log").read_text()
    assert "stopped" in log.splitlines()[-1], "it was ended in order"


def test_taken_port_is_told_before_anything_starts(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        said = cluster.refused("cluster", "up", "--brokers", "2", "--port", str(port - 1))
    assert f"broker 1 cannot listen on 127.0.0.1:{port}: address already in use" in said
    assert LocalCluster(cluster.root).running() == []


def test_folder_of_something_else_is_refused(cluster: Cluster) -> None:
    cluster.root.mkdir()
    (cluster.root / "notes.txt").touch()
    assert "expected a bus root or an empty folder" in cluster.refused("cluster", "up")
    assert "expected a bus root" in cluster.refused("cluster", "down")


@pytest.mark.parametrize("pid", [os.getppid(), 2**22 + 1], ids=["another process", "no process"])
def test_process_that_does_not_hold_the_lock_gets_no_signal(tmp_path: Path, pid: int) -> None:
    """As where the root is shared with another machine: the number of its process means nothing here."""
    (tmp_path / "cluster").mkdir()
    with (tmp_path / "cluster" / "broker-3.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"broker 3 at elsewhere:9094, pid {pid}\n")
        lock.flush()
        cluster = LocalCluster(tmp_path)
        assert cluster.running() == [3]
        with pytest.raises(Failure, match="runs, but not on this machine"):
            cluster.send(3, signal.SIGKILL)
