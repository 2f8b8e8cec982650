"""A consumer gets from memory the rows that the table has, whatever was deleted or compacted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bus.descriptions import DeletedRecords
from bus.model import TopicPartition
from bus.partition_log.reads import Readable
from bus.runtime.partitions.maintenance import FilesSwapped
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.fake_table import records
from tests.support.partition_bench import Bench, InlineCalls
from tests.support.stores import NOW_MS, led, log_batch, memory_storage


def scenario(run: Callable[[Bench, DeltaPartitionTable], Awaitable[None]]) -> None:
    async def main() -> None:
        table = led(memory_storage().create_partition(TopicPartition("orders", 0), topic_id="id"))
        bench = Bench(table=table, calls=InlineCalls())  # type: ignore[arg-type]
        await run(bench, table)
        await bench.tasks.join()

    asyncio.run(main())


async def send(bench: Bench, *rows: tuple[bytes, bytes | None]) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    batch = replace(records(len(rows)), columns=log_batch(0, values, keys=keys).columns)
    await bench.partition.append(batch, acks=-1, current_leader_epoch=None, request_id="request")


async def values_from(bench: Bench, offset: int) -> list[tuple[int, bytes | None]]:
    """Values as fetches give them, from memory or from files."""
    found: list[tuple[int, bytes | None]] = []
    end_offset = bench.partition.state.high_watermark
    while offset < end_offset:
        result = await bench.partition.read(Readable(offset, end_offset), 1 << 20)
        assert not hasattr(result, "code"), result
        for batch in result.batches:
            offsets = range(batch.base_offset, batch.next_offset)
            if "offset" in batch.columns.schema.names:
                offsets = batch.columns.column("offset").to_pylist()
            found += zip(offsets, batch.columns.column("value").to_pylist(), strict=True)
            offset = batch.next_offset
    return found


def test_values_that_were_compacted_away_are_not_served_from_memory() -> None:
    async def run(bench: Bench, table: DeltaPartitionTable) -> None:
        await send(bench, (b"k", b"old"), (b"deleted", b"secret"))
        await send(bench, (b"k", b"new"), (b"deleted", None))
        prepared = table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1 << 60)
        assert prepared is not None
        await send(bench, (b"k", b"newest"))
        assert isinstance(await bench.partition.maintenance.jobs.commit_swap(prepared, is_ours=True), FilesSwapped)
        assert [value for _, value in await values_from(bench, 0)] == [b"new", None, b"newest"]
        assert await values_from(bench, 4) == [(4, b"newest")]
        await send(bench, (b"k", b"last"))
        assert [value for _, value in await values_from(bench, 4)] == [b"newest", b"last"]

    scenario(run)


def test_what_is_rolled_stays_in_memory() -> None:
    async def run(bench: Bench, table: DeltaPartitionTable) -> None:
        for value in (b"a", b"b"):
            await send(bench, (b"k", value))
        prepared = table.rewrites.prepare_roll(
            table.rewrites.files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
        )
        assert isinstance(await bench.partition.maintenance.jobs.commit_swap(prepared, is_ours=True), FilesSwapped)
        assert bench.partition.bytes_available(Readable(0, 2), 1 << 40) < 1 << 40
        assert await values_from(bench, 0) == [(0, b"a"), (1, b"b")]

    scenario(run)


def test_deleted_records_are_not_served_from_memory() -> None:
    async def run(bench: Bench, table: DeltaPartitionTable) -> None:
        await send(bench, (b"a", b"0"), (b"b", b"1"), (b"c", b"2"))
        await send(bench, (b"d", b"3"))
        assert isinstance(await bench.partition.delete_records(2), DeletedRecords)
        assert await values_from(bench, 2) == [(2, b"2"), (3, b"3")]

    scenario(run)
