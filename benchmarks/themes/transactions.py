"""Transactions beside Kafka's, by the two Python clients: commits a second, what a large transaction costs,
consume-transform-produce, and a consumer beside open transactions.

Kafka is asked twice: with its defaults, where a commit is in the memory of the operating system when it is answered,
and with a sync for each record of the topics (flush.messages=1); its own log of transactions is never synced. Here a
commit is on the disk in every log, and its rows can be queried, when it is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, Bench
from benchmarks.figure import Figure
from benchmarks.send_process import has_confluent, run_program

_UNSYNCED = "Kafka with its defaults: not on disk when it answers"
_SYNCED = "Kafka with flush.messages=1 on the topic"
_LARGE_RECORDS = 10_000
_OPEN = 100  # transactions


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    title: str
    partitions: int
    producers: int
    ratio_target: float  # of commits a second, beside Kafka synced


_CASES = (
    _Case("one", "one producer, one partition, 10 records", 1, 1, 1.0),
    _Case("three", "one producer, three partitions, 10 records", 3, 1, 0.5),
    _Case("crowd", "50 producers, one partition, 10 records each", 1, 50, 1.0),
)


@dataclass(slots=True)
class _Runs:
    ours: list[Mapping[str, Any]] = field(default_factory=list)
    default: list[Mapping[str, Any]] = field(default_factory=list)
    synced: list[Mapping[str, Any]] = field(default_factory=list)


def measure_transactions(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for case in _CASES:
        figures += _measure_case(bench, case)
    figures += _measure_large(bench, "transactions-large", "transactions of 10,000 records")
    figures += _measure_large(
        bench, "transactions-interval", "a transaction each 100 ms, 10,000 records at a time", interval_ms=100
    )
    return [*figures, *_measure_pipeline(bench), *_measure_open(bench)]


def _measure_case(bench: Bench, case: _Case) -> list[Figure]:
    runs = _Runs()
    options = {"partitions": case.partitions, "producers": case.producers, "records": 10}
    for number in range(bench.sizes.rounds):
        _in_turn(bench, runs, "commits", case.partitions, options)
        bench.report(f"{case.title}, round {number + 1}: {_commits_text(runs)}")
    name, title = f"transactions-{case.name}", case.title
    rates = [list(map(_rate, each)) for each in (runs.ours, runs.default, runs.synced)]
    return [
        Figure(
            name, title, "commits/s", rates[0], None, True, rates[2], _SYNCED, case.ratio_target if rates[2] else None
        ),
        Figure(f"{name}-unsynced", title, "commits/s", rates[0], None, True, rates[1], _UNSYNCED),
        *(
            Figure(
                f"{name}-{kind}-{percentile}",
                f"{title}, {words} {percentile}",
                "ms",
                _values(runs.ours, f"{key}_{percentile}_ms"),
                None,
                False,
                _values(runs.synced, f"{key}_{percentile}_ms"),
                _SYNCED,
            )
            for kind, key, words in (("commit", "commit", "commit"),)
            for percentile in ("p50", "p99")
        ),
    ]


def _measure_large(bench: Bench, name: str, title: str, **load: int) -> list[Figure]:
    """Beside the same records without transactions."""
    plain = list[float]()
    runs = _Runs()
    options = {"partitions": 1, "records": _LARGE_RECORDS, **load}
    for number in range(bench.sizes.rounds):
        _in_turn(bench, runs, "commits", 1, options)
        with bench.broker() as broker:
            topic = bench.new_topic()
            loads.create_topic(broker.address, topic, 1)
            plain.append(
                loads.produce_batches(broker.address, topic, value_bytes=100, seconds=bench.sizes.idempotence_seconds)
            )
        bench.report(
            f"{title}, round {number + 1}: {_records_text(runs)}; {plain[-1]:,.0f} without transactions, "
            f"commit p50 {runs.ours[-1]['commit_p50_ms']:.1f} ms"
        )
    ours, peers = (_values(each, "records", "seconds") for each in (runs.ours, runs.default))
    return [
        Figure(
            *(name, f"{title}, beside none", "records/s", ours, None, True, plain),
            "send_batch of the same records without transactions",
            0.7,
        ),
        Figure(f"{name}-peer", title, "records/s", ours, None, True, peers, _UNSYNCED),
    ]


def _measure_pipeline(bench: Bench) -> list[Figure]:
    """Consume-transform-produce with 100 records in each transaction."""
    runs = _Runs()
    total = bench.sizes.transaction_pipeline_records
    for number in range(bench.sizes.rounds):
        _in_turn(bench, runs, "pipeline", 1, {"records": 100, "total": total})
        bench.report(f"consume-transform-produce, round {number + 1}: {_records_text(runs)}")
    rates = [_values(each, "records", "seconds") for each in (runs.ours, runs.default, runs.synced)]
    title = "consume-transform-produce, 100 records a transaction"
    return [
        Figure(
            "transactions-pipeline",
            title,
            "records/s",
            rates[0],
            None,
            True,
            rates[2],
            _SYNCED,
            1.0 if rates[2] else None,
        ),
        Figure("transactions-pipeline-unsynced", title, "records/s", rates[0], None, True, rates[1], _UNSYNCED),
    ]


def _measure_open(bench: Bench) -> list[Figure]:
    """A consumer of what is sent without transactions, beside 100 that are open, and beside none."""
    beside, alone, peers = (list[Mapping[str, Any]]() for _ in range(3))
    for number in range(bench.sizes.rounds):
        for found, count in ((beside, _OPEN), (alone, 0)):
            with bench.broker() as broker:
                topic = bench.new_topic()
                loads.create_topic(broker.address, topic, 1)
                found.append(_read_beside(bench, "bus", broker.address, topic, count))
        kafka = bench.peer() if has_confluent() else None
        if kafka is not None:
            kafka.create_topic(topic, 1)
            peers.append(_read_beside(bench, "confluent", kafka.address, topic, _OPEN))
        bench.report(f"a consumer beside {_OPEN} open transactions, round {number + 1}: {_open_text(beside, peers)}")
    title = f"a consumer beside {_OPEN} open transactions"
    note = "the same without open transactions"
    rates, lags = ([_values(runs, key) for runs in (beside, alone)] for key in ("read_per_second", "lag_p50_ms"))
    late = [_values(runs, "lag_p99_ms") for runs in (beside, alone, peers)]
    unread = "Kafka, read_committed: what is not read within the run counts with its age"
    return [
        Figure("transactions-open", title, "records/s", rates[0], None, True, rates[1], note, 0.95),
        Figure("transactions-open-p50", f"{title}, lag p50", "ms", lags[0], None, False, lags[1], note, 1.5),
        Figure("transactions-open-p99", f"{title}, lag p99", "ms", late[0], None, False, late[1], note),
        Figure("transactions-open-peer", f"{title}, lag p99", "ms", late[0], None, False, late[2], unread),
    ]


def _read_beside(bench: Bench, peer: str, address: str, topic: str, count: int) -> Mapping[str, Any]:
    return run_program(
        "open_transactions",
        peer=peer,
        address=address,
        topic=topic,
        open=count,
        seconds=bench.sizes.commit_seconds,
    )


def _open_text(beside: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]]) -> str:
    found = [("", beside), ("; Kafka ", peers)]
    return "".join(
        f"{label}{runs[-1]['read_per_second']:,.0f} records/s, lag p50 {runs[-1]['lag_p50_ms']:,.0f} ms"
        for label, runs in found
        if runs
    )


# ---------------------------------------------------------------- one of each


def _in_turn(bench: Bench, runs: _Runs, loop: str, partitions: int, options: Mapping[str, object]) -> None:
    """A new topic on each side, the same program."""
    shared: dict[str, Any] = dict(options)
    if loop == "commits":
        shared |= {"seconds": bench.sizes.commit_seconds, "warm_up_seconds": bench.sizes.commit_seconds / 4}
    with bench.broker() as broker:
        topic = bench.new_topic()
        for name in (topic, f"{topic}-out"):
            loads.create_topic(broker.address, name, partitions)
        if loop == "pipeline":
            _fill(broker.address, topic, bench)
        runs.ours.append(
            run_program("transaction_load", loop, peer="bus", address=broker.address, topic=topic, **shared)
        )
    kafka = bench.peer() if has_confluent() else None
    if kafka is None:
        return
    for suffix, configs, found in (("", (), runs.default), ("-synced", (FLUSH_EACH,), runs.synced)):
        name = topic + suffix
        for each in (name, f"{name}-out"):
            kafka.create_topic(each, partitions, *configs)
        if loop == "pipeline":
            kafka.tools.produce(name, records=bench.sizes.transaction_pipeline_records * 2, value_bytes=100)
        found.append(
            run_program("transaction_load", loop, peer="confluent", address=kafka.address, topic=name, **shared)
        )


def _fill(address: str, topic: str, bench: Bench) -> None:
    loads.produce_records(address, topic, records=max(10_000, bench.sizes.transaction_pipeline_records * 2))


def _rate(run: Mapping[str, Any]) -> float:
    return float(run["transactions"] / run["seconds"])


def _values(runs: Sequence[Mapping[str, Any]], key: str, over: str | None = None) -> list[float]:
    return [float(run[key]) / (1.0 if over is None else float(run[over])) for run in runs]


def _commits_text(runs: _Runs) -> str:
    text = f"{_rate(runs.ours[-1]):,.0f} commits/s, commit p50 {runs.ours[-1]['commit_p50_ms']:.1f} ms"
    for label, found in (("Kafka", runs.default), ("Kafka synced", runs.synced)):
        if found:
            text += f"; {label} {_rate(found[-1]):,.0f}, {found[-1]['commit_p50_ms']:.1f} ms"
    return text


def _records_text(runs: _Runs) -> str:
    text = f"{_values(runs.ours, 'records', 'seconds')[-1]:,.0f} records/s"
    for label, found in (("Kafka", runs.default), ("Kafka synced", runs.synced)):
        if found:
            text += f"; {label} {_values(found, 'records', 'seconds')[-1]:,.0f}"
    return text
