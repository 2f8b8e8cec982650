"""The peer: a real Apache Kafka of one process, measured by its own tools.

KRaft, plain `java -cp` on loopback, data in a folder of its own, stopped by its pid. Guards one promise: what is called
Kafka's figure was printed by Kafka's own tool or, for latencies, which the tools round to whole milliseconds and count
from a cold start, by `KafkaLatency.java` and `KafkaLoad.java` on Kafka's own clients. Never measures anything in
Python; clients of other makers are the business of others.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.kafka_jars import JARS, PeerMissing

_HERE = Path(__file__).parent
_START_TIMEOUT_S = 60.0
_TOOL_TIMEOUT_S = 600.0

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
"""
_JAVA_OPTIONS = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")  # as its scripts
_PAYLOADS = 1_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class LoadLatency:
    """Milliseconds of each record, and the records a second that were really sent."""

    records_per_second: float
    p50: float
    p99: float
    p999: float


class Kafka:
    """One broker with its defaults, and a heap that is not what holds it back."""

    def __init__(self, folder: Path) -> None:
        """Starts it in `folder`, which is there and empty, and waits until it answers. Raises `PeerMissing`."""
        self._folder = folder
        self._class_path = f"{JARS}/*"
        self.port, controller_port = _free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        properties = folder / "server.properties"
        properties.write_text(_PROPERTIES.format(folder=folder, port=self.port, controller_port=controller_port))
        self._tool(
            "kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(properties), timeout_s=60
        )
        heap = f"{heap_gib()}g"
        self._output = (folder / "server.out").open("w")
        self._process = subprocess.Popen(
            ["java", f"-Xms{heap}", f"-Xmx{heap}", *_JAVA_OPTIONS, "-cp", self._class_path, "kafka.Kafka", properties],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()

    def cpu_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def create_topic(self, topic: str, partitions: int, *configs: str) -> None:
        """`configs` as `NAME=VALUE` each, for example `flush.messages=1`."""
        arguments = ["--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1"]
        for config in configs:
            arguments += ["--config", config]
        self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *arguments)

    def produce(self, topic: str, *, records: int, value_bytes: int, **properties: object) -> float:
        """Records a second by ProducerPerformance as fast as it can, acks=all; `properties` of its producer with
        underscores for dots, every other one has its default.

        The values come from a file: made by the tool itself, byte by byte, they would be what it spends its time on.
        """
        named = {"bootstrap.servers": self.address, "acks": "all", **_dotted(properties)}
        printed = self._tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--payload-file", str(self._payloads(value_bytes))),
            *("--throughput", "-1", "--producer-props", *(f"{name}={value}" for name, value in named.items())),
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
        """One produce in flight, acks=all, linger.ms=0, until its acknowledgement."""
        return self._latency("produce", topic, records, value_bytes)

    def delivery_latency(self, topic: str, *, records: int, value_bytes: int) -> Latency:
        """One record at a time, acks=all, linger.ms=0, until a waiting consumer has it."""
        return self._latency("deliver", topic, records, value_bytes)

    def load(self, topic: str, *, rate: float, seconds: float, warm_up_seconds: float, value_bytes: int) -> LoadLatency:
        """Single records at `rate` a second (0: as fast as it goes), acks=all, from each `send` to its callback."""
        arguments = [
            self.address,
            topic,
            round(rate),
            round(seconds * 1000),
            round(warm_up_seconds * 1000),
            value_bytes,
        ]
        printed = self._run([str(_HERE / "KafkaLoad.java"), *map(str, arguments)], _TOOL_TIMEOUT_S)
        achieved, *micros = (float(word) for word in printed.split()[-4:])
        return LoadLatency(achieved, *(micro / 1000 for micro in micros))

    def _payloads(self, value_bytes: int) -> Path:
        """A file of a thousand random values, a line each."""
        path = self._folder / f"values-{value_bytes}"
        if not path.exists():
            letters = np.random.default_rng(0).integers(ord("0"), ord("z"), (_PAYLOADS, value_bytes), dtype=np.uint8)
            path.write_bytes(b"\n".join(row.tobytes() for row in letters) + b"\n")
        return path

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


def heap_gib() -> int:
    """Of the broker: generous, so that it is not what limits Kafka; its own scripts give it 1 GiB."""
    return max(1, min(4, int(psutil.virtual_memory().total) // 2**30 // 4))


def _dotted(properties: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in properties.items()}


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
