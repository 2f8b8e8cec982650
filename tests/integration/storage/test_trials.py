"""Files that nothing proves are tried in another process first: what ends that one is no harm to this one."""

from __future__ import annotations

import io
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.storage_delta.files.proved_parquet import BytesSource
from bus.storage_delta.files.trials import Trials, Unprovable


@pytest.fixture
def trials() -> Trials:
    return Trials()


def parquet(rows: int = 20, row_group_size: int = 8) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"n": np.arange(rows), "text": [f"text {n}" for n in range(rows)]})
    pq.write_table(
        table, sink, row_group_size=row_group_size, write_page_checksum=True, compression="none", use_dictionary=False
    )
    return sink.getvalue()


def test_a_whole_file_gets_the_sums_of_what_was_decoded(trials: Trials) -> None:
    data = parquet()
    with_close = trials.open_bytes(data)
    assert len(with_close.footer.sums.groups) == 3
    assert with_close.read().column("n").to_pylist() == list(range(20))
    trials.close()


def test_a_page_that_has_changed_is_refused(trials: Trials) -> None:
    data = bytearray(parquet())
    data[data.index(b"text 17") + 3] ^= 1
    with pytest.raises(Unprovable, match="CRC"):
        trials.sums_of(BytesSource(bytes(data)))
    trials.close()


def test_statistics_that_are_not_true_are_refused(trials: Trials) -> None:
    data = parquet(rows=4, row_group_size=4)
    footer = data.rindex((3).to_bytes(8, "little"))
    with pytest.raises(Unprovable, match="expected n from 0 to"):
        trials.sums_of(BytesSource(data[:footer] + (2).to_bytes(8, "little") + data[footer + 8 :]))
    trials.close()


@pytest.mark.parametrize("data", [b"", b"PAR1", bytes(1000), b"PAR1\xff\xff\xff\x00PAR1", parquet()[:-1]])
def test_what_is_no_parquet_file_is_refused_without_a_process(trials: Trials, data: bytes) -> None:
    with pytest.raises(Unprovable, match="expected a Parquet file"):
        trials.sums_of(BytesSource(data))
    assert trials._child is None


def test_a_process_that_a_file_ended_is_replaced(trials: Trials) -> None:
    trials.sums_of(BytesSource(parquet()))
    assert trials._child is not None

    class Killing(BytesSource):
        """The bytes of a file that aborts its reader."""

        def get(self, start: int, length: int) -> memoryview:
            if trials._child is not None:
                os.kill(trials._child._process.pid, signal.SIGABRT)
            return BytesSource.get(self, start, length)  # type: ignore[no-any-return]

    with pytest.raises(Unprovable, match="SIGABRT"):
        trials.sums_of(Killing(parquet()))
    assert trials.sums_of(BytesSource(parquet())).groups
    trials.close()


def test_a_process_that_ended_by_itself_is_no_verdict(trials: Trials) -> None:
    trials.sums_of(BytesSource(parquet()))
    assert trials._child is not None
    os.kill(trials._child._process.pid, signal.SIGTERM)
    trials._child._process.wait()
    assert trials.sums_of(BytesSource(parquet())).groups
    trials.close()
