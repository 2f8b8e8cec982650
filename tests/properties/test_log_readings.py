"""Three readings of one log agree: the state that `apply` makes, the verifier's replay, and delta-rs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.model import TopicPartition
from bus.ports import ProducerProgress
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import (
    Signature,
    decode_commit,
    encode_append,
    encode_fence,
    encode_removal,
    encode_swap,
)
from bus.storage_delta.log.listing import LOG_FOLDER, version_name
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.log.table_metadata import encode_create
from bus.storage_delta.log.table_state import TableState, apply
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.replay import replay_table

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 9), st.integers(0, 3)),
    st.tuples(st.just("append"), st.integers(1, 9), st.integers(0, 3)),
    st.tuples(st.just("swap"), st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("retain"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("fence"), st.just(0), st.just(0)),
)


@dataclass
class Writer:
    """Valid versions of a table that holds no data."""

    commits: list[bytes] = field(default_factory=list)
    live: list[LiveFile] = field(default_factory=list)
    end: int = 0
    compacted_to: int = 0

    def take(self, step: str, first: int, second: int) -> None:
        signature = Signature(len(self.commits) // 4, 1_000 + len(self.commits), "t")
        match step:
            case "append":
                file = self._file(self.end, self.end + first, first)
                self.end = file.next_offset
                progress = ProducerProgress(second, 0, self.end)
                producers = [progress] if second else []
                self.commits.append(encode_append(file, stats=_stats(file), producers=producers, signature=signature))
                self.live.append(file)
            case "swap" if self.live[first : first + second]:
                gone = self.live[first : first + second]
                base, following = gone[0].base_offset, gone[-1].next_offset
                file = self._file(base, following, max(1, (following - base) // 2), level=gone[0].level + 1)
                self.compacted_to = max(self.compacted_to, following)
                swap = {"operation": "OPTIMIZE", "high_watermark": self.end, "compacted_to": self.compacted_to}
                removes = [one.path for one in gone]
                self.commits.append(encode_swap([(file, _stats(file))], removes, **swap, signature=signature))
                self.live[first : first + second] = [file]
            case "retain" if self.live:
                gone, self.live = self.live[:first], self.live[first:]
                start = {"high_watermark": self.end, "log_start": gone[-1].next_offset}
                self.commits.append(encode_removal([one.path for one in gone], **start, signature=signature))
            case "fence":
                self.commits.append(encode_fence(high_watermark=self.end, signature=signature))

    def _file(self, base: int, following: int, count: int, *, level: int = 0) -> LiveFile:
        name = f"{base:020d}-{len(self.commits)}.parquet"
        epoch = len(self.commits) // 4
        return LiveFile(name, 10 * count, base, following, count, base, following, epoch, level=level)


def _stats(file: LiveFile) -> str:
    last = file.base_offset + file.record_count - 1
    return (
        f'{{"numRecords":{file.record_count},"minValues":{{"offset":{file.base_offset}}},'
        f'"maxValues":{{"offset":{last}}},"nullCount":{{"offset":0}}}}'
    )


@given(st.lists(STEPS, min_size=1, max_size=20), st.data())
@settings(max_examples=settings.default.max_examples // 4)
def test_every_reader_of_a_log_sees_the_same_table(steps: Sequence[tuple[str, int, int]], data: st.DataObject) -> None:
    created = encode_create(
        TopicPartition("t", 0),
        topic_id="id",
        table_id="table",
        txn_id="c",
        schema=LOG_SCHEMA,
        now_ms=1,
        is_managed=data.draw(st.booleans()),
    )
    writer = Writer([created])
    for step in steps:
        writer.take(*step)
    commits = [decode_commit(version, bytes_) for version, bytes_ in enumerate(writer.commits)]
    at = data.draw(st.integers(0, len(commits)))
    early = apply(TableState(), commits[:at])
    before = (early.version, dict(early.files), dict(early.removed), dict(early.txns))
    state = apply(early, commits[at:])

    assert state == apply(TableState(), commits)
    assert (early.version, early.files, early.removed, early.txns) == before
    assert not state.harms
    assert [file.path for file in state.files_by_offset] == [file.path for file in writer.live]
    assert state.high_watermark == writer.end
    with tempfile.TemporaryDirectory() as root:
        store, folder = LocalStore(root), "topics/t/0"
        for version, bytes_ in enumerate(writer.commits):
            store.put(f"{folder}/{LOG_FOLDER}/{version_name(version)}", bytes_)
            if version == at:
                DeltaTable(f"{root}/{folder}").create_checkpoint()
        assert _essence(load_state(store, folder)) == _essence(state)
        _check_verifier(store, folder, state)
        table = DeltaTable(f"{root}/{folder}")
        assert {uri.rsplit("/", 1)[-1] for uri in table.file_uris()} == state.files.keys()
        assert {app_id: table.transaction_version(app_id) for app_id in state.txns} == {
            app_id: txn.version for app_id, txn in state.txns.items()
        }
        assert table.version() == state.version


def _essence(state: TableState) -> tuple[object, ...]:
    """Without what a checkpoint does not tell: which files are gone, and which version was whose."""
    return (
        state.version,
        state.high_watermark,
        state.log_start,
        state.compacted_to,
        state.leader_epoch,
        state.files,
        state.txns,
        state.metadata,
        state.protocol,
        state.harms,
    )


def _check_verifier(store: LocalStore, folder: str, state: TableState) -> None:
    judged = replay_table(store, folder)
    ours = [
        (file.path, file.base_offset, file.next_offset - 1, file.record_count, file.level)
        for file in state.files_by_offset
    ]
    theirs = [
        (file.path, file.base_offset, file.last_offset, file.record_count, file.level)
        for file in judged.files_by_offset
    ]
    assert ours == theirs
    assert {app_id: txn.version for app_id, txn in state.txns.items()} == judged.txns
    facts = (state.version, state.high_watermark, state.log_start, state.compacted_to)
    assert facts == (judged.version, judged.high_watermark, judged.log_start, judged.compacted_to)
