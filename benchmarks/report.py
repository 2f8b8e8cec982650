"""Results as JSON lines, as a table in README.md, and as a picture.

`results/latest.jsonl` holds one line a figure, the newest of each theme, with the machine and the commit it was
measured on; table and picture are made from it alone, so they can be made again without measuring.
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

from benchmarks.figures import Figure

_HERE = Path(__file__).parent
RESULTS = _HERE / "results" / "latest.jsonl"
PICTURE = _HERE / "results" / "latest.png"
README = _HERE / "README.md"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"

_OURS, _PEER, _TARGET = "#1b6ca8", "#c8ccd0", "#d1495b"


def store(theme: str, figures: Sequence[Figure]) -> None:
    """Replace the lines of `theme`."""
    kept = [line for line in _read() if line["theme"] != theme]
    context = {
        "theme": theme,
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
    }
    kept += [{**context, **_values(figure)} for figure in figures]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept))


def line_of(figure: Figure) -> str:
    """One figure for a person who watches."""
    return _line(_values(figure))


def publish() -> None:
    """Write table and picture from the stored results."""
    lines = _read()
    text = README.read_text() if README.exists() else f"{_BEGIN}\n{_END}\n"
    before, rest = text.split(_BEGIN, 1)
    README.write_text(f"{before}{_BEGIN}\n{_table(lines)}\n{_END}{rest.split(_END, 1)[1]}")
    _draw(lines)


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


def _values(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "unit": figure.unit,
        "target": figure.target,
        "is_more_better": figure.is_more_better,
        "ours": figure.value,
        "kafka": figure.peer_value,
        "ratio": figure.ratio,
        "is_met": figure.is_met,
        "runs": [round(run, 4) for run in figure.runs],
        "kafka_runs": [round(run, 4) for run in figure.peer_runs],
        "note": figure.note,
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 100_000:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(line: dict[str, Any]) -> str:
    if line["target"] is None:
        return ""
    sign = "≥" if line["is_more_better"] else "≤"
    return f"{sign} {_number(line['target'])} {'✓' if line['is_met'] else '✗'}"


def _line(line: dict[str, Any]) -> str:
    peer = f"; Kafka {_number(line['kafka'])}, ratio {line['ratio']:.2f}" if line["kafka"] is not None else ""
    return f"{line['title']}: {_number(line['ours'])} {line['unit']} {_target(line)}{peer}"


def _table(lines: Sequence[dict[str, Any]]) -> str:
    rows = ["| figure | target | the bus | Kafka | ratio | note |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for line in lines:
        ratio = f"{line['ratio']:.2f}" if line["ratio"] is not None else ""
        rows.append(
            f"| {line['title']} ({line['unit']}) | {_target(line)} | {_number(line['ours'])} "
            f"| {_number(line['kafka'])} | {ratio} | {line['note']} |"
        )
    places = sorted({f"{line['machine']}; commit {line['commit']}, {line['date']}" for line in lines})
    return "\n".join(
        [*rows, "", *(f"Measured on {place}." for place in places), "", "![the figures](results/latest.png)"]
    )


# ---------------------------------------------------------------- the picture

# One panel each: (figure, how it is called in the picture).
_PANELS = (
    ("produce-100b", "produce, 100 B values"),
    ("produce-1kb", "produce, 1 KB values"),
    ("fetch-files", "fetch from files, Arrow"),
    ("latency-p50", "produce, p50"),
    ("latency-p99", "produce, p99"),
    ("delivery-p50", "to a waiting consumer, p50"),
)


def _draw(lines: Sequence[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_name = {line["name"]: line for line in lines}
    panels = [(by_name[name], title) for name, title in _PANELS if name in by_name]
    if not panels:
        return
    rows = -(-len(panels) // 3)
    picture, grid = pyplot.subplots(rows, 3, figsize=(10, 2.9 * rows + 0.6), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (line, title) in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, line, title)
    picture.suptitle("The bus beside Apache Kafka, same machine, same minutes", x=0.02, ha="left", weight="bold")
    picture.text(0.02, 0.01, lines[0]["machine"], fontsize=7.5, color="#666666")
    picture.tight_layout(rect=(0, 0.03, 1, 0.99), h_pad=2.0, w_pad=2.0)
    picture.savefig(PICTURE, dpi=110)
    pyplot.close(picture)


def _draw_panel(axes: Any, line: dict[str, Any], title: str) -> None:
    is_millions = line["unit"] == "records/s"
    scale = 1e-6 if is_millions else 1.0
    bars = [("bus", line["ours"], line["runs"], _OURS)]
    if line["kafka"] is not None:
        bars.append(("Kafka", line["kafka"], line["kafka_runs"], _PEER))
    for position, (_, value, runs, colour) in enumerate(bars):
        axes.bar(position, value * scale, width=0.6, color=colour)
        axes.scatter([position] * len(runs), [run * scale for run in runs], s=9, color="#333333", zorder=3)
    if line["target"] is not None:
        axes.axhline(line["target"] * scale, color=_TARGET, linewidth=1, linestyle="--")
        axes.annotate(
            "target",
            (1.0, line["target"] * scale),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=_TARGET,
        )
    better = "more is better" if line["is_more_better"] else "less is better"
    axes.set_title(f"{title}\n", loc="left", fontsize=10)
    axes.text(
        0,
        1.03,
        f"{'M records/s' if is_millions else line['unit']}, {better}",
        transform=axes.transAxes,
        fontsize=8,
        color="#666666",
    )
    axes.set_xticks(range(len(bars)), [f"{name}\n{_number(value * scale)}" for name, value, _, _ in bars])
    axes.set_xlim(-0.6, max(1, len(bars) - 1) + 0.6)
    axes.margins(y=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=0)
    axes.tick_params(axis="x", labelsize=9.5)
