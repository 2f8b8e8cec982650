"""Single records of the SDK at a pace, and how long each took: `python -m benchmarks.paced_sends --rate 1000 ...`.

The twin of `KafkaLoad.java`: acks=all, the producer's defaults, the time from the call of `send` to the callback of its
future, nothing of the warm-up counted. Some thousand records a second are samples, evenly spread: a callback on each
record would be a load of its own. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.sends import records_of
from bus import Producer

_SAMPLES_PER_SECOND = 5_000
_PAUSE_S = 0.0005


class PacedSender:
    def __init__(self, producer: Producer, topic: str, value: bytes) -> None:
        self._producer = producer
        self._topic = topic
        self._value = value
        self.samples: list[float] = []
        self.failures: list[BaseException] = []

    def send_for(self, seconds: float, rate: float) -> int:
        """How many were sent: what was due, burst by burst."""
        every = max(1, round(rate / _SAMPLES_PER_SECOND))
        send, topic, value = self._producer.send, self._topic, self._value
        sent = 0
        started = now = time.perf_counter()
        while now - started < seconds:
            for number in range(sent, int((now - started) * rate)):
                if number % every:
                    send(topic, value)
                else:
                    self._send_sample()
                sent += 1
            time.sleep(_PAUSE_S)
            now = time.perf_counter()
        return sent

    def _send_sample(self) -> None:
        called = time.perf_counter()

        def take(future: Any) -> None:
            self.samples.append(time.perf_counter() - called)
            if (error := future.exception()) is not None:
                self.failures.append(error)

        self._producer.send(self._topic, self._value).add_done_callback(take)


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    value = records_of(arguments.value_bytes, 0)[0][0]
    with Producer(arguments.address, acks="all") as producer:
        sender = PacedSender(producer, arguments.topic, value)
        sender.send_for(arguments.warm_up_seconds, arguments.rate)
        producer.flush(60)
        sender.samples.clear()
        started = time.perf_counter()
        sent = sender.send_for(arguments.seconds, arguments.rate)
        producer.flush(60)
        elapsed = time.perf_counter() - started
    if sender.failures:
        raise RuntimeError(f"{len(sender.failures)} records failed, one of them: {sender.failures[0]}")
    if not sender.samples:
        raise RuntimeError(f"expected records at {arguments.rate} a second, found none within {arguments.seconds} s")
    p50, p99, p999 = (float(value) * 1_000 for value in np.percentile(sender.samples, [50, 99, 99.9]))
    return {"records_per_second": sent / elapsed, "p50": p50, "p99": p99, "p999": p999}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paced_sends", description="Records at a pace.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-up-seconds", type=float, default=2.0)
    parser.add_argument("--value-bytes", type=int, default=100)
    sys.stdout.write(json.dumps(measure(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
