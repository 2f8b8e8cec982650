"""Spans of producers: never narrower than the rows, small, and found again."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_spans import (
    EVERY_SPAN,
    NO_SPANS,
    SPANS_PER_FILE_MAX,
    ProducerSpans,
    check_spans,
    count_spans,
    decode_spans,
    encode_run,
    encode_runs,
    id_max_of,
    spans_of_statistics,
)

Run = tuple[int, int, int, int]  # id, epoch, first, last

RUNS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 200), st.integers(0, 20)).map(
        lambda run: (run[0], run[1], run[2], run[2] + run[3])
    ),
    min_size=1,
    max_size=300,
)


def encoded(runs: list[Run]) -> str:
    return encode_runs(*np.array(runs, np.int64).T)


def holds(text: str, producer_id: int, epoch: int, sequence: int) -> bool:
    spans = decode_spans([text])
    return bool(
        np.any(
            (spans["producer_id_min"] <= producer_id)
            & (producer_id <= spans["producer_id_max"])
            & (spans["epoch_min"] <= epoch)
            & (epoch <= spans["epoch_max"])
            & (spans["sequence_min"] <= sequence)
            & (sequence <= spans["sequence_max"])
        )
    )


@given(RUNS)
def test_every_row_lies_within_a_span_and_there_are_few(runs: list[Run]) -> None:
    text = encoded(runs)
    assert 0 < count_spans(text) <= SPANS_PER_FILE_MAX
    assert check_spans(text, count_spans(text)) == text
    for producer_id, epoch, first, last in runs:
        assert holds(text, producer_id, epoch, first)
        assert holds(text, producer_id, epoch, last)
    assert id_max_of(text) == max(run[0] for run in runs)


def test_runs_that_continue_each_other_are_one_span_though_others_are_between() -> None:
    assert encoded([(7, 0, 0, 4), (8, 0, 9, 9), (7, 0, 5, 6), (7, 1, 0, 3)]) == " ".join(
        [
            encode_run(producer_id=7, producer_epoch=0, first=0, last=6),
            encode_run(producer_id=7, producer_epoch=1, first=0, last=3),
            encode_run(producer_id=8, producer_epoch=0, first=9, last=9),
        ]
    )


def test_spans_of_few_producers_exclude_the_others() -> None:
    text = encoded([(7, 0, 0, 4), (9, 0, 100, 104)])
    assert not holds(text, 8, 0, 3)
    assert not holds(text, 7, 0, 100)
    assert not holds(text, 7, 1, 0)


@pytest.mark.parametrize("text", ["1 2 3", "a 0 0 0 0 0", "1 0 0 0 -5 0", "1 0 0 0 0 0 7 0 0 0 0 0"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1 spans"):
        check_spans(text, 1)


def stats(count: int = 5, nulls: int = 0, **bounds: int) -> str:
    return json.dumps(
        {
            "numRecords": count,
            "minValues": {"producer_id": 3, "sequence": 40},
            "maxValues": {"producer_id": 5, "sequence": 60, **bounds},
            "nullCount": {"producer_id": nulls},
        }
    )


def test_statistics_of_another_engine_are_one_span_or_none() -> None:
    text = spans_of_statistics(stats())
    assert holds(text, 4, 30_000, 60)
    assert not holds(text, 6, 0, 50)
    assert not holds(text, 4, 0, 61)
    assert spans_of_statistics(stats(5, 5)) == NO_SPANS


@pytest.mark.parametrize("told", [None, "", "{}", "[]", "{", "7", stats(producer_id=-3), stats(sequence=2**31)])
def test_statistics_that_tell_too_little_exclude_nothing(told: str | None) -> None:
    assert spans_of_statistics(told) == EVERY_SPAN
    assert holds(EVERY_SPAN, 2**63 - 1, 2**15 - 1, 2**31 - 1)
    assert id_max_of(EVERY_SPAN) == 2**63 - 1


@dataclass
class _Model:
    files: list[LiveFile]

    def places(self, producer_id: int, file_count: int) -> list[int]:
        return [
            place
            for place, file in enumerate(self.files[:file_count])
            if any(
                span["producer_id_min"] <= producer_id <= span["producer_id_max"]
                for span in decode_spans([file.producers])
            )
        ]


@given(st.lists(st.one_of(st.just([]), RUNS.map(lambda runs: runs[:5])), max_size=30), st.data())
def test_index_answers_as_a_search_through_all_files_would_while_they_grow(
    files: list[list[Run]], data: st.DataObject
) -> None:
    model = _Model([])
    index = ProducerSpans(model.files)
    for runs in files:
        spans = encoded(runs) if runs else NO_SPANS
        model.files.append(LiveFile("f", 1, 0, 1, 1, 0, 0, 0, producers=spans))
        if data.draw(st.booleans()):
            producer_id = data.draw(st.integers(0, 10))
            file_count = data.draw(st.integers(0, len(model.files)))  # a reader may have an older view
            found = index.find_producer(producer_id, file_count=file_count)
            assert sorted(set(found["file"].tolist())) == model.places(producer_id, file_count)
