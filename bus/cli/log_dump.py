"""`bus log dump`: the records as they lie in the data files, in the form of Kafka's DumpLogSegments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bus.cli.groups import BusCommand
from bus.cli.options import complete_topics, root_option
from bus.cli.output import echo
from bus.cli.partition_arguments import Target, open_store, partitions_of
from bus.cli.record_format import value_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from bus.storage_delta.files.live_file import LiveFile
    from bus.storage_delta.stores.store import ObjectStore


@click.command(
    cls=BusCommand,
    examples="""
    bus log dump orders/0 --print-data
    bus log dump orders/0 --from-offset 1500 --to-offset 1510
    bus log dump orders/0 --file 00000000000000000000-3f0c.parquet
    """,
)
@click.argument("target", metavar="TOPIC/PARTITION", shell_complete=complete_topics)
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="The first offset to show.")
@click.option("--to-offset", type=click.IntRange(min=0), help="The offset to stop before.  [default: the end]")
@click.option("--file", "path", metavar="NAME", help="Only this data file, even one that the table does not name.")
@click.option("--print-data", is_flag=True, help="Keys and values, too.")
@root_option()
def dump(target: str, from_offset: int, to_offset: int | None, path: str | None, print_data: bool, root: str) -> None:
    """Show the records as they lie in the data files, as Kafka's DumpLogSegments does."""
    from bus.storage_delta.log.listing import partition_folder
    from bus.storage_delta.log.reading import load_state

    chosen = Target(target)
    if chosen.partition is None:
        raise click.BadParameter(f"expected TOPIC/PARTITION, found {target!r}")
    store = open_store(root)
    partition = next(iter(partitions_of(store, chosen)))
    folder = partition_folder(partition)
    files = load_state(store, folder).files_by_offset
    if path is not None:
        name = path.rsplit("/", 1)[-1]
        named = [file for file in files if file.path == name]
        if not named:
            echo(f"note: the table does not name {name} at its current version", err=True)
        _dump_file(store, folder, name, named[0] if named else None, from_offset, to_offset, print_data)
        return
    for file in files:
        if file.next_offset > from_offset and (to_offset is None or file.base_offset < to_offset):
            _dump_file(store, folder, file.path, file, from_offset, to_offset, print_data)


def _dump_file(
    store: ObjectStore,
    folder: str,
    path: str,
    file: LiveFile | None,
    from_offset: int,
    to_offset: int | None,
    print_data: bool,
) -> None:
    from bus.storage_delta.files.inspection import read_records

    echo(f"Dumping {path}")
    if file is not None:
        echo(f"Starting offset: {file.base_offset}")
        echo(
            f"baseOffset: {file.base_offset} lastOffset: {file.next_offset - 1} count: {file.record_count} "
            f"version: {'-' if file.version < 0 else file.version} size: {file.size_bytes}"
        )
    batches = read_records(store, folder, path, from_offset=from_offset, to_offset=to_offset)
    if file is None:
        first = next(batches, None)
        if first is None:
            return
        echo(f"Starting offset: {first.column('offset')[0].as_py()}")
        _dump_batch(first, print_data)
    for batch in batches:
        _dump_batch(batch, print_data)


def _dump_batch(batch: pa.RecordBatch, print_data: bool) -> None:
    import pyarrow as pa

    if not print_data and not pa.types.is_nested(batch.schema.field("value").type):
        batch = batch.set_column(
            batch.schema.get_field_index("value"), "value", _sizes(batch.column("value"))
        ).set_column(batch.schema.get_field_index("key"), "key", _sizes(batch.column("key")))
    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    lines = [_dump_line(row, int(at), print_data) for row, at in zip(_rows(batch), times, strict=True)]
    echo("\n".join(lines))


def _sizes(column: pa.Array) -> pa.Array:
    """Sizes instead of bytes: they need not become Python objects to be counted."""
    import pyarrow.compute as pc

    return pc.binary_length(column)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    index = batch.schema.get_field_index("timestamp")
    return batch.remove_column(index).to_pylist()  # type: ignore[no-any-return]


def _dump_line(row: dict[str, Any], timestamp_ms: int, print_data: bool) -> str:
    kind = ("CreateTime", "LogAppendTime")[row["timestamp_type"]]
    headers = ",".join(header["key"] for header in row["headers"] or ())
    line = (
        f"| offset: {row['offset']} {kind}: {timestamp_ms} keySize: {_size(row['key'])} "
        f"valueSize: {_size(row['value'])} leaderEpoch: {row['leader_epoch']} "
        f"producerId: {_or_none(row['producer_id'])} producerEpoch: {_or_none(row['producer_epoch'])} "
        f"sequence: {_or_none(row['sequence'])} headerKeys: [{headers}]"
    )
    if print_data:
        for name, label in (("key", "key"), ("value", "payload")):
            if row[name] is not None:
                line += f" {label}: {value_bytes(row[name]).decode(errors='backslashreplace')}"
    return line


def _size(data: Any) -> int:
    """`data` is the size itself where no more is to be shown."""
    if data is None:
        return -1
    return data if isinstance(data, int) else len(value_bytes(data))


def _or_none(value: int | None) -> int:
    return -1 if value is None else value
