"""Consuming stored records: as Python objects beside confluent-kafka, as Arrow beside Kafka's consumer-perf-test."""

from __future__ import annotations

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.figure import Figure
from benchmarks.send_process import has_confluent, run_consumption

_PARTITIONS = 4


def measure_consumption(bench: Bench) -> list[Figure]:
    records = bench.sizes.consumed_records
    objects: list[float] = []
    arrow: list[float] = []
    confluent: list[float] = []
    perf: list[float] = []
    topic = bench.new_topic()
    kafka = bench.peer()
    if kafka is not None:
        kafka.create_topic(topic, _PARTITIONS)
        kafka.tools.produce(topic, records=records, value_bytes=100)
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, _PARTITIONS)
        loads.produce_records(broker.address, topic, records=records)
        for number in range(bench.sizes.rounds):
            objects.append(run_consumption("bus", broker.address, topic, partitions=_PARTITIONS, records=records))
            arrow.append(loads.fetch_arrow(broker.address, topic, partitions=_PARTITIONS, records=records))
            bench.report(f"round {number + 1}: poll {objects[-1]:,.0f} records/s, poll_arrow {arrow[-1]:,.0f}")
            if kafka is not None:
                perf.append(kafka.tools.consume(topic, records=records))
                if has_confluent():
                    confluent.append(
                        run_consumption("confluent", kafka.address, topic, partitions=_PARTITIONS, records=records)
                    )
                bench.report(f"  confluent {(confluent or [0])[-1]:,.0f}, Kafka's consumer-perf-test {perf[-1]:,.0f}")
    return [
        Figure(
            "consume-objects",
            f"{records:,} stored records as Python objects",
            "records/s",
            objects,
            is_more_better=True,
            peer_runs=confluent,
            ratio_target=4.0,
            note="beside confluent-kafka",
        ),
        Figure(
            "consume-arrow",
            "... as Arrow, poll_arrow",
            "records/s",
            arrow,
            is_more_better=True,
            peer_runs=perf,
            ratio_target=2.0,
            note="beside Kafka's consumer-perf-test",
        ),
    ]
