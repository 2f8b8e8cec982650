"""The columns of producers on their way to a reader: the same from memory, from a file, merged or alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bus.client.connection.fetch_requests import decode_batch
from bus.client.consumer.records import open_batch
from bus.grpc_api.server.records.fetch_encoding import DEFAULT_FETCH_COLUMNS, encode_batches
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, TopicPartition
from bus.records.arrow_batches import decode_arrow
from bus.records.log_schema import LOG_COLUMNS, LOG_SCHEMA
from bus.storage_delta.files.data_files import encode_data_file
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from tests.support.memory_store import MemoryStore
from tests.support.stores import log_batch

LAST = SEQUENCE_MODULUS - 1
ALL = [*DEFAULT_FETCH_COLUMNS, "producer_id", "producer_epoch", "sequence"]
Row = tuple[int | None, int | None, int | None]


def batches_of(*parts: tuple[int, tuple[int, int, int] | None]) -> list[LogBatch]:
    batches: list[LogBatch] = []
    for count, stamp in parts:
        batch = log_batch(batches[-1].next_offset if batches else 0, [b"v"] * count)
        batches.append(batch if stamp is None else replace(batch, producer=ProducerStamp(*stamp)))
    return batches


def from_file(batches: list[LogBatch]) -> list[LogBatch]:
    encoded = encode_data_file(batches, LOG_SCHEMA, name_suffix="x", compression="none")
    store = MemoryStore()
    store.put(f"t/{encoded.file.path}", encoded.data)
    return list(DataReader(store, "t", LOG_SCHEMA, ReadCache()).batches_from(encoded.file, 0))


def wire(batches: list[LogBatch], columns: Sequence[str]) -> list[pb.LogBatch]:
    return [pb.LogBatch.FromString(b"".join(pieces)) for pieces in encode_batches(batches, columns)]


def fetched(batches: list[LogBatch], columns: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for message in wire(batches, columns):
        opened = open_batch(TopicPartition("t", 0), decode_batch(message), 0)
        assert opened.schema.names == list(LOG_COLUMNS)
        names = ("producer_id", "producer_epoch", "sequence")
        rows += zip(*(opened.column(name).to_pylist() for name in names), strict=True)
    return rows


GROUPS = {
    "one": batches_of((3, (7, 1, 40))),
    "large, wraps": batches_of((700, (7, 1, LAST - 9))),
    "one run": batches_of((2, (7, 1, LAST - 2)), (3, (7, 1, LAST))),
    "a gap": batches_of((2, (7, 1, 0)), (3, (7, 1, 5))),
    "two epochs": batches_of((2, (7, 1, 0)), (3, (7, 2, 2))),
    "mixed": batches_of((2, (7, 1, 0)), (1, None), (3, (8, 0, LAST - 1))),
    "none": batches_of((2, None), (1, None)),
}


@pytest.mark.parametrize("batches", GROUPS.values(), ids=GROUPS)
def test_all_three_columns_arrive_from_memory_and_from_a_file(batches: list[LogBatch]) -> None:
    expected: list[Row] = []
    for batch in batches:
        for at in range(batch.record_count):
            stamp = batch.producer
            expected.append(
                (None, None, None)
                if stamp is None
                else (stamp.producer_id, stamp.producer_epoch, (stamp.base_sequence + at) % SEQUENCE_MODULUS)
            )
    assert fetched(batches, ALL) == expected
    assert fetched(from_file(batches), ALL) == expected


@pytest.mark.parametrize("batches", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "sequence"])
def test_only_the_column_that_was_asked_for_arrives(batches: list[LogBatch], name: str) -> None:
    at = ("producer_id", "producer_epoch", "sequence").index(name)
    whole = fetched(batches, ALL)
    for source in (batches, from_file(batches)):
        rows = fetched(source, [*DEFAULT_FETCH_COLUMNS, name])
        assert [row[at] for row in rows] == [row[at] for row in whole]
        assert {row[other] for row in rows for other in range(3) if other != at} == {None}


@pytest.mark.parametrize("batches", GROUPS.values(), ids=GROUPS)
def test_nothing_of_producers_travels_unless_it_was_asked_for(batches: list[LogBatch]) -> None:
    for source in (batches, from_file(batches)):
        for message in wire(source, DEFAULT_FETCH_COLUMNS):
            assert not any(message.HasField(name) for name in ("producer_id", "producer_epoch", "base_sequence"))
            assert not {"producer_id", "producer_epoch", "sequence"} & set(decode_arrow(message.arrow).schema.names)


def test_neighbours_of_one_run_travel_as_one_batch_with_one_stamp() -> None:
    (message,) = wire(GROUPS["one run"], ALL)
    assert (message.producer_id, message.producer_epoch, message.base_sequence) == (7, 1, LAST - 2)
    assert "sequence" not in decode_arrow(message.arrow).schema.names


def test_a_stamp_of_zeros_is_not_the_absence_of_one() -> None:
    (message,) = wire(batches_of((1, (0, 0, 0))), ALL)
    assert message.HasField("producer_id")
    assert message.HasField("base_sequence")
