"""`python -m benchmarks.run`: measure, then write the results, the table and the picture.

A full run replaces the results of the themes it measured; `--quick` is for trying things out and keeps its hands off
what is published.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import figures, report
from benchmarks.kafka import PeerMissing, resolve_jars

_THEMES = {**figures.THEMES, "soak": figures.measure_soak}


def main() -> None:
    arguments = _parse()
    started = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.0f} s  {line}\n")
        sys.stdout.flush()

    themes = [arguments.only] if arguments.only else list(figures.THEMES)
    if arguments.soak:
        themes = ["soak"]
    with tempfile.TemporaryDirectory(prefix="bus-bench-", dir=arguments.folder) as folder:
        sizes = figures.QUICK if arguments.quick else figures.Sizes()
        bench = figures.Bench(sizes, Path(folder), tell, has_peer=not arguments.no_peer)
        if bench.has_peer:
            try:
                resolve_jars()
            except PeerMissing as missing:
                tell(f"without Kafka beside it: {missing}")
                bench.has_peer = False
        try:
            for theme in themes:
                measured = _THEMES[theme](bench)
                for figure in measured:
                    tell(report.line_of(figure))
                if not arguments.quick:
                    report.store(theme, measured)
        finally:
            for extra in list(bench.peers):
                bench.stop_peer(extra)
    if not arguments.quick:
        report.publish()
        tell(f"written: {report.README}, {report.PICTURE}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure the bus beside Kafka.")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, nothing is written")
    parser.add_argument("--only", choices=list(_THEMES), help="one theme")
    parser.add_argument("--soak", action="store_true", help="the ten-minute run for memory, alone")
    parser.add_argument("--no-peer", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, help="where the data goes meanwhile; default: the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
