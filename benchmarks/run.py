"""`python -m benchmarks.run`: measure, then write the results, the table and the pictures.

A full run replaces the results of the themes it measured, each as soon as it is measured; `--quick` is for trying
things out and keeps its hands off what is published.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.bench import QUICK, Bench, Sizes
from benchmarks.figure import Curve, Figure
from benchmarks.kafka_jars import PeerMissing, resolve_jars
from benchmarks.themes.batch_sizes import measure_batch_sizes
from benchmarks.themes.batches import measure_batches
from benchmarks.themes.cluster import measure_cluster
from benchmarks.themes.commits import measure_many_commits
from benchmarks.themes.consumption import measure_consumption
from benchmarks.themes.days import measure_day
from benchmarks.themes.failover import measure_failover
from benchmarks.themes.fetches import measure_fetch
from benchmarks.themes.groups import measure_groups, measure_offsets
from benchmarks.themes.idempotence import measure_idempotence
from benchmarks.themes.latencies import measure_delivery, measure_produce_latency
from benchmarks.themes.load_latencies import measure_load_latencies
from benchmarks.themes.maintenance import measure_maintenance
from benchmarks.themes.many_producers import measure_many_producers
from benchmarks.themes.partitions import measure_many_partitions, measure_soak
from benchmarks.themes.restarts import measure_restarts
from benchmarks.themes.security_acls import measure_acls
from benchmarks.themes.security_logins import measure_logins
from benchmarks.themes.security_tls import measure_tls
from benchmarks.themes.single_sends import measure_sends
from benchmarks.themes.spark_reads import measure_spark_batch, measure_spark_stream
from benchmarks.themes.spark_waits import measure_spark_freshness, measure_spark_latency, measure_spark_partitions
from benchmarks.themes.spark_writes import measure_spark_sink
from benchmarks.themes.timers import measure_timers
from benchmarks.themes.transactions import measure_transactions

Tell = Callable[[str], None]
Theme = Callable[[Bench], Sequence[Figure | Curve]]

_THEMES: dict[str, Theme] = {
    "send": measure_sends,
    "batch": measure_batches,
    "latency": measure_produce_latency,
    "delivery": measure_delivery,
    "fetch": measure_fetch,
    "idempotence": measure_idempotence,
    "producers": measure_many_producers,
    "batch-size": measure_batch_sizes,
    "load": measure_load_latencies,
    "consume": measure_consumption,
    "groups": measure_groups,
    "offsets": measure_offsets,
    "timers": measure_timers,
    "partitions": measure_many_partitions,
    "maintenance": measure_maintenance,
    "day": measure_day,
    "restarts": measure_restarts,
    "transactions": measure_transactions,
    "cluster": measure_cluster,
    "failover": measure_failover,
    "security-acls": measure_acls,
    "security-tls": measure_tls,
    "security-logins": measure_logins,
    "spark-batch": measure_spark_batch,
    "spark-stream": measure_spark_stream,
    "spark-latency": measure_spark_latency,
    "spark-freshness": measure_spark_freshness,
    "spark-sink": measure_spark_sink,
    "spark-partitions": measure_spark_partitions,
    "commits": measure_many_commits,  # last: it leaves the most files behind
}
_SOAK = "soak"


def main() -> int:
    arguments = _parse()
    # As Ctrl-C does: brokers are stopped and the folder goes, whoever ends this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.0f} s  {line}\n")
        sys.stdout.flush()

    if arguments.soak:
        themes: dict[str, Theme] = {_SOAK: measure_soak}
    else:
        themes = {name: _THEMES[name] for name in arguments.only or _THEMES}
    with tempfile.TemporaryDirectory(prefix="bus-bench-", dir=arguments.folder) as folder:
        bench = Bench(QUICK if arguments.quick else Sizes(), Path(folder), tell, has_peer=not arguments.no_peer)
        try:
            bench.check_space()
        except OSError as missing:
            tell(str(missing))
            return 1
        _find_peer(bench)
        failed = [name for name, theme in themes.items() if not _measure(bench, name, theme, not arguments.quick)]
    if arguments.quick:
        tell("the sizes were for trying things out: Kafka's tools count their cold start, so compare nothing here")
    else:
        report.publish()
        tell(f"written: {report.README}, {report.PICTURES}")
    if failed:
        tell(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _find_peer(bench: Bench) -> None:
    if bench.has_peer:
        try:
            resolve_jars()
        except PeerMissing as missing:
            bench.report(f"without Kafka beside it: {missing}")
            bench.has_peer = False


def _measure(bench: Bench, name: str, theme: Theme, is_stored: bool) -> bool:
    """False if it failed: the hours of the other themes are not thrown away for it."""
    try:
        measured = theme(bench)
    except Exception as error:
        bench.report(f"theme {name} failed: {error!r}")
        return False
    finally:
        bench.end_theme()
    for result in measured:
        bench.report(report.line_of(result))
    if is_stored:
        report.store(name, measured)
    return True


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure the bus beside Kafka.")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, nothing is written")
    parser.add_argument("--only", choices=list(_THEMES), nargs="+", help="these themes")
    parser.add_argument("--soak", action="store_true", help="the ten-minute run for memory, alone")
    parser.add_argument("--no-peer", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, help="where the data goes meanwhile; default: the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
