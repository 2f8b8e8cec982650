"""Each rule about the records of producers on a few rows, and what is said of those that break it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from bus.storage_delta.verify.producer_verification import ProducerCheck
from bus.storage_delta.verify.replay import FORGOTTEN_APP, AddedFile

Record = tuple[int, int | None, int | None, int | None]  # offset, producer, epoch, sequence
Told = tuple[str, str, str, str]  # file, promise, expected, found

FOLLOW = "producers' sequences follow each other"
ENDED = "the log tells where producers ended"


def records(*places: tuple[int, int, int], producer: int = 7) -> list[Record]:
    """Records of one producer: offset, epoch, sequence."""
    return [(offset, producer, epoch, sequence) for offset, epoch, sequence in places]


class Bench:
    """Hands the files of a log to the check, and notes what it finds."""

    def __init__(self) -> None:
        self.check = ProducerCheck()
        self.told: list[Told] = []

    def add(
        self, name: str, rows: list[Record], *, spans: str = "", is_ours: bool = True, may_have_holes: bool = False
    ) -> None:
        """`spans`: what its tag says of producers behind the six numbers of the file."""
        offsets, ids, epochs, sequences = zip(*rows, strict=True)
        columns = {
            "offset": pa.array(offsets, pa.int64()),
            "producer_id": pa.array(ids, pa.int64()),
            "producer_epoch": pa.array(epochs, pa.int16()),
            "sequence": pa.array(sequences, pa.int32()),
        }
        stats = {
            "numRecords": len(rows),
            "minValues": {"offset": min(offsets)},
            "maxValues": {"offset": max(offsets)},
        }
        tag = f"{min(offsets)} {max(offsets) + 1} {len(rows)} 0 0 0{spans}" if is_ours else None
        file = AddedFile(name, 1, 1, stats, tag)
        found = self.check.add_file(file, pa.table(columns), may_have_holes=may_have_holes)
        self.told += [(name, *finding) for finding in found]

    def ends(self, txns: Mapping[str, int], *, is_whole: bool = True) -> list[Told]:
        found = self.check.check_txns(txns, is_whole=is_whole)
        return [(path or "_delta_log", *finding) for path, finding in found]


def test_sequences_follow_each_other_within_files_and_between_them() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 0), (1, 0, 1)) + records((9, 0, 2**31 - 1), producer=8))
    bench.add("g", records((12, 0, 2), (13, 0, 2)) + records((10, 0, 0), producer=8))
    bench.add("h", records((24, 0, 9)) + records((21, 1, 0), producer=8))
    expected = "epoch 0 and sequence 3 of producer 7, or a higher epoch"
    assert bench.told == [
        ("g", FOLLOW, expected, "epoch 0 and sequence 2 at offset 13"),
        ("h", FOLLOW, expected, "epoch 0 and sequence 9 at offset 24"),
    ]


def test_a_higher_epoch_begins_with_0_or_goes_on_and_a_lower_one_never_comes() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 4), (1, 1, 5), (2, 2, 0)))
    bench.add("g", records((3, 3, 7)))
    bench.add("h", records((4, 2, 8)))
    assert bench.told == [
        ("g", FOLLOW, "epoch 2 and sequence 1 of producer 7, or a higher epoch", "epoch 3 and sequence 7 at offset 3"),
        ("h", FOLLOW, "epoch 3 and sequence 8 of producer 7, or a higher epoch", "epoch 2 and sequence 8 at offset 4"),
    ]


def test_behind_holes_and_losses_a_sequence_only_has_to_be_later() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 4), (5, 0, 9)), may_have_holes=True)
    bench.add("g", records((10, 0, 20)))
    bench.check.pass_loss()
    bench.add("h", records((20, 0, 40)))
    bench.check.pass_loss()
    bench.add("i", records((30, 0, 39)))
    expected = "epoch 0 and sequence 41 of producer 7, or a higher epoch"
    assert bench.told == [("i", FOLLOW, expected, "epoch 0 and sequence 39 at offset 30")]


def test_a_stamp_has_all_of_its_three_columns_or_none() -> None:
    bench = Bench()
    bench.add("f", [(0, 7, 0, None), (1, None, None, None), (2, 7, 0, 5)])
    expected = "nulls in the same rows of all three columns"
    found = "1 in producer_id, 1 in producer_epoch, 2 in sequence"
    assert bench.told == [("f", "producers have id, epoch and sequence", expected, found)]


def test_spans_leave_no_record_out() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 0), (1, 0, 1)), spans=" 2 7 0 0 0 0 0 1 8 0 2 1 0")
    bench.add("g", records((2, 0, 2)), spans=" 0")
    bench.add("h", records((3, 0, 3)))
    expected = "a span for producer 7, epoch 0, sequence 2"
    assert bench.told == [("g", "statistics are true", expected, "the tag '2 3 1 0 0 0 0'")]


def test_the_log_tells_where_producers_ended() -> None:
    bench = Bench()
    bench.add("f", records((0, 1, 4)) + records((1, 0, 0), producer=8) + records((2, 0, 0), producer=9))
    txns = {"bus/7": 1 << 32 | 4, "bus/8": 5, "bus/10": 0, "bus/high_watermark": 3}
    expected = [
        ("f", ENDED, "txn bus/8 at epoch 0 and sequence 0", "epoch 0 and sequence 5"),
        ("f", ENDED, "txn bus/9 at epoch 0 and sequence 0", "none"),
        ("_delta_log", ENDED, "a record of bus/10, which has a txn", "none"),
    ]
    assert bench.ends(txns) == expected
    assert bench.ends(txns, is_whole=False) == expected[:2]  # the retired records may have been those of 10


def test_the_log_need_not_name_producers_that_were_forgotten() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 0), producer=8) + records((1, 0, 0), producer=9))
    expected = ("f", ENDED, "txn bus/9 at epoch 0 and sequence 0", "none")
    assert bench.ends({FORGOTTEN_APP: 8}) == [expected]


def test_the_log_need_not_name_producers_whose_rows_another_engine_brought() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 0)), is_ours=False)
    assert bench.ends({}) == []
    assert bench.ends({"bus/7": 3}) == [("f", ENDED, "txn bus/7 at epoch 0 and sequence 0", "epoch 0 and sequence 3")]


def test_a_txn_may_be_ahead_of_records_that_compaction_or_a_loss_took() -> None:
    bench = Bench()
    bench.add("f", records((0, 0, 4)), may_have_holes=True)
    bench.add("g", records((5, 0, 4), producer=8))
    assert bench.ends({"bus/7": 9, "bus/8": 4}) == []
    assert bench.ends({"bus/7": 9, "bus/8": 9}) != []
    bench.check.pass_loss()
    assert bench.ends({"bus/7": 9, "bus/8": 9}) == []
