"""The peer: a real Apache Kafka of one process, measured by its own tools.

KRaft, plain `java -cp` on loopback, data in a folder of its own, stopped by its pid. The jars come from Maven Central
once, into a folder that git ignores. Guards one promise: what is called Kafka's figure was printed by Kafka's own tool
or, for latencies, which the tools round to whole milliseconds, by `KafkaLatency.java` on Kafka's own clients. Never
measures anything in Python.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_JARS = _HERE / ".kafka"
_START_TIMEOUT_S = 60.0
_TOOL_TIMEOUT_S = 600.0

VERSION = "4.1.0"

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
{extra}
"""


class PeerMissing(Exception):
    """Kafka cannot run here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float
    maximum: float


def resolve_jars() -> None:
    """Fetch the jars if they are not there. Raises `PeerMissing`."""
    if shutil.which("java") is None:
        raise PeerMissing("no `java` on the path: install a Java 17 (for example openjdk-17-jdk-headless)")
    if (_JARS / f"kafka-tools-{VERSION}.jar").exists():
        return
    if shutil.which("mvn") is None:
        raise PeerMissing("no `mvn` on the path: install Maven once, it fetches Kafka's jars")
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={_JARS}"],
        capture_output=True,
        text=True,
    )
    if fetched.returncode != 0:
        raise PeerMissing(f"Kafka's jars could not be fetched: {(fetched.stdout + fetched.stderr).strip()[-500:]}")


class Kafka:
    """One broker. `extra` are lines of its properties file, for example `log.flush.interval.messages=1`."""

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        """Starts it and waits until it answers. Raises `PeerMissing`."""
        self._folder = folder
        self._class_path = f"{_JARS}/*"
        folder.mkdir(parents=True)
        self.port, controller_port = _free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        properties = folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(folder=folder, port=self.port, controller_port=controller_port, extra=extra)
        )
        self._tool(
            "kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(properties), timeout_s=60
        )
        self._output = (folder / "server.out").open("w")
        self._process = subprocess.Popen(
            ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", self._class_path, "kafka.Kafka", str(properties)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()

    def create_topic(self, topic: str, partitions: int) -> None:
        arguments = ["--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1"]
        self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *arguments)

    def produce(self, topic: str, *, records: int, value_bytes: int) -> float:
        """Records a second by ProducerPerformance as fast as it can, acks=all, every other setting its default."""
        printed = self._tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(value_bytes)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={self.address}", "acks=all"),
        )
        return float(_find(r"([\d.]+) records/sec .*99\.9th", printed.splitlines()[-1]))

    def consume(self, topic: str, *, records: int) -> float:
        """Records a second by ConsumerPerformance, from the beginning, without the time of joining the group."""
        printed = self._tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", self.address, "--topic", topic, "--messages", str(records), "--hide-header"),
        )
        return float(printed.strip().splitlines()[-1].split(", ")[-1])

    def produce_latency(self, topic: str, *, records: int, value_bytes: int) -> Latency:
        """One produce in flight, acks=all, until its acknowledgement."""
        return self._latency("produce", topic, records, value_bytes)

    def delivery_latency(self, topic: str, *, records: int, value_bytes: int) -> Latency:
        """One record at a time, acks=all, until a waiting consumer has it."""
        return self._latency("deliver", topic, records, value_bytes)

    def _latency(self, mode: str, topic: str, records: int, value_bytes: int) -> Latency:
        program = str(_HERE / "KafkaLatency.java")
        printed = self._run([program, mode, self.address, topic, str(records), str(value_bytes)], _TOOL_TIMEOUT_S)
        p50, p99, maximum = (float(word) / 1000 for word in printed.split()[-3:])
        return Latency(p50, p99, maximum)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise PeerMissing(f"Kafka did not start: {(self._folder / 'server.out').read_text()[-500:]}")

    def _tool(self, name: str, *arguments: str, timeout_s: float = _TOOL_TIMEOUT_S) -> str:
        return self._run([name, *arguments], timeout_s)

    def _run(self, arguments: list[str], timeout_s: float) -> str:
        done = subprocess.run(
            ["java", "-Xmx512m", "-cp", self._class_path, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self._folder,
        )
        if done.returncode != 0:
            raise PeerMissing(f"{arguments[0]} failed: {(done.stdout + done.stderr).strip()[-500:]}")
        return done.stdout


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise PeerMissing(f"expected {pattern!r} in the output of Kafka's tool, found {text[-300:]!r}")
    return found[1]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
