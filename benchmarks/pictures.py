"""The pictures: bars of the figures beside Kafka's, and curves over batch size and over load.

Each takes stored lines of `report` and writes one file; it returns the path, or None if there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_OURS, _PEER, _TARGET, _GREY = "#1b6ca8", "#c8ccd0", "#d1495b", "#666666"
# In the order in which curves of the bus, and of others, appear.
_OUR_COLOURS, _PEER_COLOURS = ("#1b6ca8", "#6fb1dd"), ("#8a9097", "#c98b4a")
_DPI = 110

# One panel each: figure, how it is called in the picture, what stands beside it and where its records are then.
_PANELS = (
    ("send", "send(), no keys", "confluent\npage cache"),
    ("send-keyed", "send(), 1,000 keys", "confluent\npage cache"),
    ("produce-100b", "send_batch, 100 B values", "Kafka\npage cache"),
    ("produce-1kb", "send_batch, 1 KB values", "Kafka\npage cache"),
    ("fetch-files", "fetch from files, Arrow", "Kafka\npage cache"),
    ("delivery-p50", "to a waiting consumer, p50", "Kafka\npage cache"),
    ("latency-p50", "produce, p50", "Kafka\non disk"),
    ("latency-p99", "produce, p99", "Kafka\non disk"),
)


_SPARKS_KAFKA = "Spark's\nKafka connector"
_SPARK_THROUGHPUT = (
    ("spark-batch-100b-bus-sum", 'batch, 100 B, format("bus")', _SPARKS_KAFKA),
    ("spark-batch-100b-native-sum", "batch, 100 B, read_topic", _SPARKS_KAFKA),
    ("spark-batch-1kb-bus-sum", 'batch, 1 KB, format("bus")', _SPARKS_KAFKA),
    ("spark-stream-100b", "AvailableNow, 100 B", _SPARKS_KAFKA),
    ("spark-sink-100b", "written by Spark, 100 B", _SPARKS_KAFKA),
    ("spark-sink-1kb", "written by Spark, 1 KB", _SPARKS_KAFKA),
)
_TO_DELTA = "Kafka, Spark\nand Delta"
_SPARK_FRESHNESS = (
    ("spark-latency-p50", "until foreachBatch has it, p50", _SPARKS_KAFKA),
    ("spark-freshness-native-p50", "until a Spark SQL count sees it, p50", _TO_DELTA),
    ("spark-freshness-embedded-p50", "until the embedded engine sees it, p50", _TO_DELTA),
)


def short_number(value: float | None) -> str:
    """For people: three digits or so; nothing for None."""
    if value is None:
        return ""
    if abs(value) >= 100_000:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def draw_bars(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    return _draw_panels(lines, _PANELS, "The bus beside Apache Kafka, same machine, same minutes", path)


def draw_spark_throughput(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    return _draw_panels(lines, _SPARK_THROUGHPUT, "Spark on the bus beside Spark on Kafka: throughput", path)


def draw_spark_freshness(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    return _draw_panels(lines, _SPARK_FRESHNESS, "How fresh: from send() until it is seen", path)


def _draw_panels(
    lines: Sequence[dict[str, Any]], wanted: Sequence[tuple[str, str, str]], heading: str, path: Path
) -> Path | None:
    by_name = {line["name"]: line for line in lines}
    panels = [(by_name[name], title, peer) for name, title, peer in wanted if name in by_name]
    if not panels:
        return None
    pyplot = _pyplot()
    rows = -(-len(panels) // 3)
    picture, grid = pyplot.subplots(rows, 3, figsize=(10, 2.9 * rows + 0.6), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (line, title, peer) in zip(grid.flat, panels, strict=False):
        _draw_bars(axes, line, title, peer)
    _finish(pyplot, picture, heading, panels[0][0], path)
    return path


def _draw_bars(axes: Any, line: dict[str, Any], title: str, peer: str) -> None:
    is_millions = line["unit"] == "records/s"
    scale = 1e-6 if is_millions else 1.0
    bars = [("bus\non disk", line["ours"], line["runs"], _OURS)]
    if line["kafka"] is not None:
        bars.append((peer, line["kafka"], line["kafka_runs"], _PEER))
    for position, (_, value, runs, colour) in enumerate(bars):
        axes.bar(position, value * scale, width=0.6, color=colour)
        axes.scatter([position] * len(runs), [run * scale for run in runs], s=9, color="#333333", zorder=3)
    if line["target"] is not None:
        _draw_target(axes, line["target"] * scale)
    unit = "M records/s" if is_millions else line["unit"]
    _title(axes, title, f"{unit}, {'more' if line['is_more_better'] else 'less'} is better")
    axes.set_xticks(range(len(bars)), [f"{name}\n{short_number(value * scale)}" for name, value, _, _ in bars])
    axes.set_xlim(-0.6, max(1, len(bars) - 1) + 0.6)
    axes.margins(y=0.1)
    axes.tick_params(axis="x", labelsize=9.5)


def _draw_target(axes: Any, height: float) -> None:
    axes.axhline(height, color=_TARGET, linewidth=1, linestyle="--")
    axes.annotate(
        "target",
        (1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(2, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=_TARGET,
    )


def draw_batch_sizes(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    curves = [line for line in lines if line["picture"] == "batch-size"]
    if not curves:
        return None
    pyplot = _pyplot()
    picture, axes = pyplot.subplots(figsize=(9, 5))
    for line, colour in _coloured(curves):
        _draw_curve(axes, line, "records/s", colour)
    _title(axes, "", "records/s of 100 bytes, 4 partitions, acks=all; more is better")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of a batch: batch.size, or 100 times the records of a send_batch", fontsize=8.5)
    axes.legend(fontsize=8, frameon=False)
    _finish(pyplot, picture, "Throughput against batch size", curves[0], path)
    return path


def draw_load_latencies(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    curves = [line for line in lines if line["picture"] == "load"]
    if not curves:
        return None
    pyplot = _pyplot()
    picture, grid = pyplot.subplots(1, 3, figsize=(11, 4.4), sharey=True)
    for axes, percentile in zip(grid, ("p50", "p99", "p99.9"), strict=True):
        for line, colour in _coloured(curves):
            _draw_curve(axes, line, percentile, colour)
        _title(axes, percentile, "ms from send() to the callback, less is better")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("records/s of 100 bytes", fontsize=8.5)
    grid[0].legend(fontsize=8, frameon=False)
    title = "Latency of single records against load: 1 % to 90 % of each one's maximum, linger 5 ms"
    _finish(pyplot, picture, title, curves[0], path)
    return path


def draw_failover(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    curves = [line for line in lines if line["picture"] == "failover"]
    if not curves:
        return None
    pyplot = _pyplot()
    picture, axes = pyplot.subplots(figsize=(9, 4.6))
    for line, colour in _coloured(curves):
        _draw_curve(axes, line, "max", colour)
    axes.axvline(0.0, color=_TARGET, linewidth=1, linestyle="--")
    _title(axes, "", "ms that the slowest produce took of those sent in each tenth of a second; less is better")
    axes.set_yscale("log")
    axes.set_xlabel("seconds from the kill -9 of one of three brokers", fontsize=8.5)
    axes.legend(fontsize=8, frameon=False)
    _finish(pyplot, picture, "Latency over time across a failover", curves[0], path)
    return path


def _coloured(curves: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    ours, peers = iter(_OUR_COLOURS), iter(_PEER_COLOURS)
    return [(line, next(ours if line["label"].startswith("the bus") else peers, "#000000")) for line in curves]


def _draw_curve(axes: Any, line: dict[str, Any], y: str, colour: str) -> None:
    """The medians as a line, every single run as a dot."""
    points = sorted(line["points"], key=lambda point: float(point["x"]))
    places = [point["x"] for point in points]
    axes.plot(places, [point["values"][y] for point in points], color=colour, linewidth=1.6, label=line["label"])
    for place, point in zip(places, points, strict=True):
        axes.scatter([place] * len(point["runs"][y]), point["runs"][y], s=8, color=colour, zorder=3)


def _title(axes: Any, title: str, subtitle: str) -> None:
    axes.set_title(f"{title}\n", loc="left", fontsize=10)
    axes.text(0, 1.03, subtitle, transform=axes.transAxes, fontsize=8, color=_GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=0)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _finish(pyplot: Any, picture: Any, title: str, line: dict[str, Any], path: Path) -> None:
    picture.suptitle(title, x=0.02, ha="left", weight="bold")
    picture.text(0.02, 0.01, line["machine"], fontsize=7.5, color=_GREY)
    picture.tight_layout(rect=(0, 0.03, 1, 0.99), h_pad=2.0, w_pad=2.0)
    picture.savefig(path, dpi=_DPI)
    pyplot.close(picture)
