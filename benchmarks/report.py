"""Results as JSON lines, and the table in README.md.

`results/latest.jsonl` holds one line a figure and one a curve, the newest of each, with the machine and the commit it
was measured on; table and pictures are made from it alone, so they can be made again without measuring.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.figure import Curve, Figure
from benchmarks.pictures import (
    draw_bars,
    draw_batch_sizes,
    draw_failover,
    draw_load_latencies,
    draw_spark_freshness,
    draw_spark_throughput,
    short_number,
)

_HERE = Path(__file__).parent
RESULTS = _HERE / "results" / "latest.jsonl"
PICTURES = _HERE / "results"
README = _HERE / "README.md"
_POINTS_TOLD = 20
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"

_PICTURE_TITLES = {
    "latest.png": "the figures",
    "batch-size.png": "throughput against batch size",
    "load.png": "latency against load",
    "failover.png": "latency over time across a failover",
    "spark-throughput.png": "throughput of Spark",
    "spark-freshness.png": "how fresh what Spark sees is",
}


def store(theme: str, results: Sequence[Figure | Curve]) -> None:
    """Replace the lines of `theme`, and of its figures where they were measured as another theme's."""
    context = {
        "theme": theme,
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
    }
    added = [{**context, **_values(result)} for result in results]
    names = {line["name"] for line in added}
    kept = [line for line in _read() if line["theme"] != theme and line["name"] not in names]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in [*kept, *added]))


def line_of(result: Figure | Curve) -> str:
    """One figure or curve for a person who watches."""
    if isinstance(result, Curve):
        points = "; ".join(
            f"{short_number(point.x)}: " + ", ".join(f"{y} {short_number(value)}" for y, value in point.values.items())
            for point in result.points[:_POINTS_TOLD]
        )
        if (more := len(result.points) - _POINTS_TOLD) > 0:
            points += f"; and {more} more"
        return f"{result.label}: {points}"
    return _line(_values(result))


def publish() -> None:
    """Write table and pictures from the stored results."""
    lines = _read()
    figures = [line for line in lines if "points" not in line]
    curves = [line for line in lines if "points" in line]
    drawn = [
        draw_bars(figures, PICTURES / "latest.png"),
        draw_batch_sizes(curves, PICTURES / "batch-size.png"),
        draw_load_latencies(curves, PICTURES / "load.png"),
        draw_failover(curves, PICTURES / "failover.png"),
        draw_spark_throughput(figures, PICTURES / "spark-throughput.png"),
        draw_spark_freshness(figures, PICTURES / "spark-freshness.png"),
    ]
    text = README.read_text() if README.exists() else f"{_BEGIN}\n{_END}\n"
    before, rest = text.split(_BEGIN, 1)
    shown = [f"![{_PICTURE_TITLES[path.name]}](results/{path.name})" for path in drawn if path is not None]
    README.write_text("\n".join([before + _BEGIN, _table(lines), "", *shown, _END]) + rest.split(_END, 1)[1])


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"
    )


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=_HERE, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def _values(result: Figure | Curve) -> dict[str, Any]:
    if isinstance(result, Curve):
        return _curve_values(result)
    figure = result
    return {
        "name": figure.name,
        "title": figure.title,
        "unit": figure.unit,
        "target": figure.target,
        "ratio_target": figure.ratio_target,
        "is_more_better": figure.is_more_better,
        "ours": figure.value,
        "kafka": figure.peer_value,
        "ratio": figure.ratio,
        "is_met": figure.is_met,
        "is_ratio_met": figure.is_ratio_met,
        "runs": [round(run, 4) for run in figure.runs],
        "kafka_runs": [round(run, 4) for run in figure.peer_runs],
        "note": figure.note,
    }


def _curve_values(curve: Curve) -> dict[str, Any]:
    points = [
        {
            "x": round(point.x, 1),
            "values": point.values,
            "runs": {y: [round(run, 4) for run in runs] for y, runs in point.runs.items()},
        }
        for point in curve.points
    ]
    return {
        "name": f"{curve.picture}: {curve.label}",
        "picture": curve.picture,
        "label": curve.label,
        "points": points,
    }


def _targets(line: dict[str, Any]) -> str:
    """Lines of earlier runs know no target of a ratio."""
    sign = "≥" if line["is_more_better"] else "≤"
    marks = {True: "✓", False: "✗", None: "not measured"}
    targets = []
    if line["target"] is not None:
        targets.append(f"{sign} {short_number(line['target'])} {marks[line['is_met']]}")
    if line.get("ratio_target") is not None:
        targets.append(f"ratio {sign} {short_number(line['ratio_target'])} {marks[line['is_ratio_met']]}")
    return ", ".join(targets)


def _line(line: dict[str, Any]) -> str:
    peer = f"; Kafka {short_number(line['kafka'])}, ratio {line['ratio']:.2f}" if line["kafka"] is not None else ""
    return f"{line['title']}: {short_number(line['ours'])} {line['unit']} {_targets(line)}{peer}"


def _table(lines: Sequence[dict[str, Any]]) -> str:
    rows = ["| figure | target | the bus | Kafka | ratio | note |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for line in lines:
        if "points" in line:
            continue
        ratio = f"{line['ratio']:.2f}" if line["ratio"] is not None else ""
        rows.append(
            f"| {line['title']} ({line['unit']}) | {_targets(line)} | {short_number(line['ours'])} "
            f"| {short_number(line['kafka'])} | {ratio} | {line['note']} |"
        )
    themes: dict[str, dict[str, None]] = {}  # place and code -> what was measured there, in the order of the table
    for line in lines:
        place = f"{line['machine']}; commit {line['commit']}, {line['date']}"
        themes.setdefault(place, {})[line["theme"]] = None
    places = (f"- {', '.join(measured)}: {place}" for place, measured in themes.items())
    return "\n".join([*rows, "", "Measured, by theme, on", "", *places])
