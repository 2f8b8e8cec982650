"""Where the time of `send()` goes, record by record: the calling thread, the SDK's other work, the wire, the broker.

The producer runs in this process with clocks around its stages, the broker in its own. What is given is processor
time, by thread and stage, of one run as fast as it goes; what the stages leave over is gRPC, the interpreter, and the
threads that wait for one another.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import loads
from benchmarks.seams import Seams
from benchmarks.sends import records_of, send_for
from benchmarks.timed_broker import TimedBroker
from bus import Producer

# Stage, and the seam that it is.
_STAGES = (
    ("close a batch, choose its partitions", "close"),
    ("encode requests: Arrow, protobuf", "encode"),
    ("hand over to gRPC", "send"),
    ("take answers, settle futures", "_answer"),
)
_BROKER_STAGES = (
    ("decode and check", ("decode_produce",)),
    ("encode Parquet and statistics", ("encode_data_file",)),
    ("write and sync", ("write_unique", "commit_version")),
)


class ClientClocks:
    """Clocks in the producer of this process, from now on and for ever."""

    def __init__(self) -> None:
        from bus.client.connection import request_stream
        from bus.client.producer import accumulator
        from bus.client.producer import threads as producer_threads

        self.seams = Seams()
        self.seams.around(accumulator.RecordAccumulator, "close")
        self.seams.around(producer_threads.PartEncoder, "encode")
        self.seams.around(request_stream.RequestStream, "send", ends="client sent")
        self.seams.around(producer_threads.ProduceStream, "_answer")

    def own_cpu(self) -> dict[tuple[str, bool], float]:
        return dict(self.seams.own_cpu)


def send_stages(folder: Path, clocks: ClientClocks, *, keys: int, seconds: float) -> dict[str, float]:
    """Nanoseconds a record by stage; all but the elapsed time are of a core."""
    broker = TimedBroker(folder)
    try:
        loads.create_topic(broker.address, "sends", 4)
        with Producer(broker.address) as producer:
            client = _run(producer, clocks, records_of(loads.SMALL_VALUE_BYTES, keys), seconds)
        seams = broker.seams()
    finally:
        broker.stop()
    stages = {f"client: {stage}": value / client["sent"] * 1e9 for stage, value in client.items() if stage != "sent"}
    stages |= {f"broker: {stage}": value / client["all"] * 1e9 for stage, value in _broker(seams["cpu"]).items()}
    elapsed = stages.pop("client: elapsed")
    del stages["client: all"]
    return {**stages, "elapsed": elapsed}


def _run(producer: Producer, clocks: ClientClocks, records: Any, seconds: float) -> dict[str, float]:
    """Seconds by stage, the records that were measured (`sent`) and those with the warm-up (`all`)."""

    def send_all(burst: Any) -> None:
        for value, key in burst:
            producer.send("sends", value, key)

    warm = send_for(seconds / 4, records, send_all)
    producer.flush(60)
    before, process, thread, started = clocks.own_cpu(), time.process_time(), time.thread_time(), time.perf_counter()
    sent = send_for(seconds, records, send_all)
    calling, looped = time.thread_time() - thread, time.perf_counter() - started
    producer.flush(60)
    elapsed, process = time.perf_counter() - started, time.process_time() - process
    used = {seam: value - before.get(seam, 0.0) for seam, value in clocks.own_cpu().items()}
    on_calling = sum(value for (_, is_main), value in used.items() if is_main)
    by_stage = {stage: used.get((seam, True), 0.0) + used.get((seam, False), 0.0) for stage, seam in _STAGES}
    elsewhere = sum(value for (_, is_main), value in used.items() if not is_main)
    return {
        "the call of send() itself": calling - on_calling,
        **by_stage,
        "the rest: gRPC's threads, interpreter": process - calling - elsewhere,
        "all of the client": process,
        "calling thread not running, waiting": looped - calling,
        "elapsed": elapsed,
        "sent": sent,
        "all": sent + warm,
    }


def _broker(cpu: dict[str, float]) -> dict[str, float]:
    stages = {stage: sum(cpu[name] for name in names) for stage, names in _BROKER_STAGES}
    rest = cpu["process"] - sum(stages.values())
    return {**stages, "the rest: gRPC, event loop, interpreter": rest, "all of the broker": cpu["process"]}
