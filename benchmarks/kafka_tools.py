"""What measures a Kafka: its own tools and, for latencies, some lines of Java on its own clients.

Guards one promise: what is called Kafka's figure was printed by Kafka's own tool or, for latencies, which the tools
round to whole milliseconds and count from a cold start, by `KafkaLatency.java` and `KafkaLoad.java`. Never measures
anything in Python; clients of other makers are the business of others.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.kafka_jars import JARS, PeerMissing

_HERE = Path(__file__).parent
_TIMEOUT_S = 600.0
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


class KafkaTools:
    """For the brokers at `address`, one or several with commas; `folder` is for files that the tools read, `properties`
    a file of how to reach the brokers."""

    def __init__(self, address: str, folder: Path, properties: Path | None = None) -> None:
        self._address = address
        self._folder = folder
        self._properties = properties

    def produce(self, topic: str, *, records: int, value_bytes: int, **properties: object) -> float:
        """Records a second by ProducerPerformance as fast as it can, acks=all; `properties` of its producer with
        underscores for dots, every other one has its default.

        The values come from a file: made by the tool itself, byte by byte, they would be what it spends its time on.
        """
        named = {"bootstrap.servers": self._address, "acks": "all", **_dotted(properties)}
        printed = run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--payload-file", str(self._payloads(value_bytes))),
            *("--throughput", "-1", "--producer-props", *(f"{name}={value}" for name, value in named.items())),
            *self._config_file("--producer.config"),
        )
        return float(_find(r"([\d.]+) records/sec .*99\.9th", printed.splitlines()[-1]))

    def consume(self, topic: str, *, records: int) -> float:
        """Records a second by ConsumerPerformance, from the beginning, without the time of joining the group."""
        printed = run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", self._address, "--topic", topic, "--messages", str(records), "--hide-header"),
            *self._config_file("--consumer.config"),
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
            self._address,
            topic,
            round(rate),
            round(seconds * 1000),
            round(warm_up_seconds * 1000),
            value_bytes,
        ]
        printed = run_java([str(_HERE / "KafkaLoad.java"), *map(str, arguments), *self._config_file()], _TIMEOUT_S)
        achieved, *micros = (float(word) for word in printed.split()[-4:])
        return LoadLatency(achieved, *(micro / 1000 for micro in micros))

    def _payloads(self, value_bytes: int) -> Path:
        """A file of a thousand random values, a line each."""
        path = self._folder / f"values-{value_bytes}"
        if not path.exists():
            letters = np.random.default_rng(0).integers(ord("0"), ord("z"), (_PAYLOADS, value_bytes), dtype=np.uint8)
            path.write_bytes(b"\n".join(row.tobytes() for row in letters) + b"\n")
        return path

    def _config_file(self, *option: str) -> list[str]:
        return [] if self._properties is None else [*option, str(self._properties)]

    def _latency(self, mode: str, topic: str, records: int, value_bytes: int) -> Latency:
        program = str(_HERE / "KafkaLatency.java")
        arguments = [mode, self._address, topic, str(records), str(value_bytes), *self._config_file()]
        printed = run_java([program, *arguments], _TIMEOUT_S)
        p50, p99, maximum = (float(word) / 1000 for word in printed.split()[-3:])
        return Latency(p50, p99, maximum)


def run_tool(name: str, *arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
    """What a tool of Kafka printed. Raises `PeerMissing` if it failed."""
    return run_java([name, *arguments], timeout_s)


def run_java(arguments: list[str], timeout_s: float) -> str:
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", f"{JARS}/*", *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode != 0:
        raise PeerMissing(f"{arguments[0]} failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout


def _dotted(properties: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in properties.items()}


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise PeerMissing(f"expected {pattern!r} in the output of Kafka's tool, found {text[-300:]!r}")
    return found[1]
