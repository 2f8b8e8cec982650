"""A peer of three: Kafka brokers that are controllers too (KRaft, combined mode), on loopback, replication factor 3.

Guards the same promise as `kafka.py`: a real Apache Kafka with its defaults but for what is named, each process stopped
by its pid. What it is asked goes through confluent-kafka, the client that its load uses too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks.kafka import JAVA_OPTIONS, free_ports
from benchmarks.kafka_jars import JARS, PeerMissing
from benchmarks.kafka_tools import KafkaTools, run_tool

_START_TIMEOUT_S = 120.0
_LOOK_S = 0.1
_HEAP = "1g"  # as its scripts

_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/data
default.replication.factor={brokers}
offsets.topic.replication.factor={brokers}
transaction.state.log.replication.factor={brokers}
group.initial.rebalance.delay.ms=0
"""


class KafkaCluster:
    """`with` stops all brokers. The ids are 0, 1, ..."""

    def __init__(self, folder: Path, brokers: int, *properties: str) -> None:
        """Starts them in `folder`, which is empty; `properties` as `NAME=VALUE` each. Raises `PeerMissing`."""
        from confluent_kafka.admin import AdminClient

        self.ids = list(range(brokers))
        ports = free_ports(2 * brokers)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:brokers]]
        voters = ",".join(f"{node}@127.0.0.1:{ports[brokers + node]}" for node in self.ids)
        cluster_id = uuid.uuid4().hex[:22]
        # Kept for good: the calls of one that is collected fail.
        self._admin = AdminClient({"bootstrap.servers": ",".join(self.addresses), "log_level": 0})
        self.tools = KafkaTools(",".join(self.addresses), folder)
        self._paths: list[Path] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for node in self.ids:
            path = folder / f"broker-{node}"
            path.mkdir()
            chosen = _PROPERTIES.format(
                node=node,
                voters=voters,
                port=ports[node],
                controller_port=ports[brokers + node],
                folder=path,
                brokers=brokers,
            )
            (path / "server.properties").write_text(chosen + "".join(f"{one}\n" for one in properties))
            self._paths.append(path)
            run_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(path / "server.properties"))
        try:
            self.start_missing()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_missing(self) -> None:
        """Those that do not run; waits until each is counted on. Raises `PeerMissing`."""
        for node in self.ids:
            if node not in self._processes or self._processes[node].poll() is not None:
                self._start(node)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while self._count_brokers() < len(self.ids):
            for node, process in self._processes.items():
                if process.poll() is not None:
                    raise PeerMissing(f"Kafka did not start: {(self._paths[node] / 'server.out').read_text()[-500:]}")
            if time.monotonic() > deadline_s:
                raise PeerMissing(f"Kafka's {len(self.ids)} brokers did not find each other in {_START_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)

    def _start(self, node: int) -> None:
        path = self._paths[node]
        with (path / "server.out").open("a") as output:
            self._processes[node] = subprocess.Popen(
                [
                    *("java", f"-Xms{_HEAP}", f"-Xmx{_HEAP}", *JAVA_OPTIONS, "-cp", f"{JARS}/*"),
                    *("kafka.Kafka", str(path / "server.properties")),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """All at once: the last two of three would wait for a majority that is gone."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self, node: int) -> float:
        """By SIGKILL; the moment, in seconds of the monotonic clock."""
        process = self._processes[node]
        now_s = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return now_s

    def controller(self) -> int:
        """The active one; its own tool alone tells which that is."""
        printed = run_tool(
            *("org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", ",".join(self.addresses)),
            *("describe", "--status"),
        )
        return int(next(line.split()[1] for line in printed.splitlines() if line.startswith("LeaderId:")))

    def create_topic(self, topic: str, partitions: int, **configs: object) -> None:
        from confluent_kafka.admin import NewTopic

        named = {key.replace("_", "."): str(value) for key, value in configs.items()}
        wanted = NewTopic(topic, partitions, len(self.ids), config=named)
        for created in self._admin.create_topics([wanted], operation_timeout=60).values():
            created.result(120)

    def wait_replicated(self, topic: str) -> None:
        """Until every replica is in sync. Raises `PeerMissing`."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while any(len(one.isrs) < len(self.ids) for one in self._partitions(topic)):
            if time.monotonic() > deadline_s:
                raise PeerMissing(f"replicas of {topic} were not in sync within {_START_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)

    def elect_leaders(self) -> None:
        """Preferred leaders lead again."""
        run_tool(
            *("org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", ",".join(self.addresses)),
            *("--election-type", "PREFERRED", "--all-topic-partitions"),
        )

    def cpu_seconds(self) -> list[float]:
        """Processor seconds of each broker that runs, since its start."""
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes.values()]
        return [float(one.user + one.system) for one in times]

    def _partitions(self, topic: str) -> list[Any]:
        return list(self._admin.list_topics(topic, timeout=60).topics[topic].partitions.values())

    def _count_brokers(self) -> int:
        """Those that the controller counts on."""
        from confluent_kafka import KafkaException

        try:
            return len(self._admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return 0
