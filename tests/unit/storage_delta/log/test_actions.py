"""Actions as bytes and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bus.model import TopicPartition
from bus.ports import ProducerProgress
from bus.records.log_schema import (
    LOG_SCHEMA,
    is_same_schema,
)
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import MalformedCommit, Signature, decode_commit, encode_append
from bus.storage_delta.log.table_metadata import encode_create
from bus.storage_delta.log.txns import Txn, decode_producers

FILE = LiveFile("00000000000000000010-x.parquet", 1234, 10, 30, 20, 5, 9, 3)
STATS = '{"numRecords":20}'


def append_bytes(*producers: ProducerProgress) -> bytes:
    return encode_append(FILE, stats=STATS, producers=producers, signature=Signature(3, 77, "t-1"))


def test_an_append_is_read_back_as_it_was_written() -> None:
    progress = ProducerProgress(producer_id=7, producer_epoch=2, last_sequence=2**31 - 1)
    commit = decode_commit(4, append_bytes(progress))
    assert commit.is_ours
    assert (commit.operation, commit.txn_id, commit.leader_epoch) == ("WRITE", "t-1", 3)
    assert commit.adds[0].live == replace(FILE, committed_ms=77)
    assert json.loads(append_bytes().splitlines()[-1])["add"]["stats"] == STATS
    assert commit.adds[0].is_data_change
    assert commit.txns["bus/high_watermark"] == Txn(30, updated_ms=77)
    assert commit.txns["bus/leader_epoch"] == Txn(3, updated_ms=77)
    assert decode_producers(commit.txns) == {7: replace(progress, updated_ms=77)}


def test_every_line_of_a_commit_is_json_by_itself() -> None:
    lines = append_bytes(ProducerProgress(1, 0, 0)).decode().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["commitInfo", "txn", "txn", "txn", "add"]


def test_no_cut_of_a_commit_is_taken_for_a_shorter_one() -> None:
    whole = append_bytes(ProducerProgress(1, 0, 0))
    for end in range(len(whole) - 1):
        with pytest.raises(MalformedCommit):
            decode_commit(1, whole[:end])
    assert decode_commit(1, whole[:-1]) == decode_commit(1, whole)  # the last newline carries nothing


@pytest.mark.parametrize("data", [b"", b"\n \n", b"[]", b"3\n", b"\x00" * 50, b'{"add":{}}', b'{"add":', b'{"txn":3}'])
def test_bytes_that_are_no_commit_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedCommit):
        decode_commit(1, data)


def test_a_commit_of_another_engine_is_not_ours() -> None:
    data = b'{"commitInfo":{"engineInfo":"Apache-Spark/4","operation":"OPTIMIZE"}}\n{"remove":{"path":"a%20b"}}'
    commit = decode_commit(1, data)
    assert not commit.is_ours
    assert [remove.path for remove in commit.removes] == ["a b"]
    assert decode_commit(1, b'{"remove":{"path":"x"}}').operation == "unknown"


@pytest.mark.parametrize("is_managed", [False, True])
def test_version_0_has_protocol_and_metadata(is_managed: bool) -> None:
    data = encode_create(
        TopicPartition("orders", 3),
        topic_id="id-1",
        table_id="t",
        txn_id="x",
        schema=LOG_SCHEMA,
        now_ms=1,
        is_managed=is_managed,
    )
    commit = decode_commit(0, data)
    assert commit.protocol is not None
    assert (commit.protocol.reader_version, commit.protocol.writer_version) == ((1, 7) if is_managed else (1, 2))
    assert commit.protocol.writer_features == ({"appendOnly", "invariants", "busManaged"} if is_managed else None)
    assert commit.metadata is not None
    assert commit.metadata.topic_id == "id-1"
    assert commit.metadata.configuration["bus.partition"] == "3"
    assert is_same_schema(commit.metadata.schema_string, LOG_SCHEMA)
