"""The peer: a real Apache Kafka of one process, measured by its own tools.

KRaft, plain `java -cp` on loopback, data in a folder of its own, stopped by its pid.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import psutil

from benchmarks.kafka_jars import JARS, PeerMissing
from benchmarks.kafka_tools import KafkaTools, run_tool
from benchmarks.key_files import KeyFiles

_START_TIMEOUT_S = 60.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
JAVA_OPTIONS = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")  # as its scripts


class Kafka:
    """One broker with its defaults, and a heap that is not what holds it back."""

    def __init__(self, folder: Path, keys: KeyFiles | None = None) -> None:
        """Starts it in `folder`, which is there and empty, and waits until it answers. With `keys` it has a second
        listener, by TLS. Raises `PeerMissing`."""
        self._folder = folder
        self.port, controller_port, tls_port = free_ports(3)
        self.address = f"127.0.0.1:{self.port}"
        self.tools = KafkaTools(self.address, folder)
        listeners = f"PLAINTEXT://{self.address}"
        if keys is not None:
            self.tls_address = f"127.0.0.1:{tls_port}"
            self.tls_tools = self._tls_tools(keys)
            listeners += f",SSL://{self.tls_address}"
        properties = folder / "server.properties"
        text = _PROPERTIES.format(folder=folder, listeners=listeners, controller_port=controller_port)
        properties.write_text(text + (keys.kafka_broker_properties if keys is not None else ""))
        run_tool("kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(properties), timeout_s=60)
        heap = f"{heap_gib()}g"
        self._output = (folder / "server.out").open("w")
        self._process = subprocess.Popen(
            ["java", f"-Xms{heap}", f"-Xmx{heap}", *JAVA_OPTIONS, "-cp", f"{JARS}/*", "kafka.Kafka", properties],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def _tls_tools(self, keys: KeyFiles) -> KafkaTools:
        properties = self._folder / "client.properties"
        properties.write_text(keys.kafka_client_properties)
        return KafkaTools(self.tls_address, self._folder, properties)

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
        run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *arguments)

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


def heap_gib() -> int:
    """Of the broker: generous, so that it is not what limits Kafka; its own scripts give it 1 GiB."""
    return max(1, min(4, int(psutil.virtual_memory().total) // 2**30 // 4))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
