"""Claims of a stream are found before memory is allocated, and no sound stream is refused."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bus.grpc_api.server.records.arrow_claims import BATCHES_MAX, Allowance, PayloadTooLarge, check_claims
from bus.records.arrow_batches import MalformedRecords, decode_arrow

BYTES_MAX = 1_000_000


def stream(*batches: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def claimed(payload: bytes) -> int:
    """The bytes that a stream takes of its allowance."""
    allowance = Allowance(BYTES_MAX)
    check_claims(payload, allowance)
    return BYTES_MAX - allowance.bytes_left


VALUES = batch(value=pa.array([b"x" * 900] * 10), key=pa.array([b"k", None] * 5))
MIXED = batch(
    value=pa.array([b"v", None, b""]),
    headers=pa.array([[{"key": "h", "value": b"1"}], None, []]),
    timestamp=pa.array([1, None, 3], pa.timestamp("us", tz="UTC")),
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_legacy_format": True},
        {"metadata_version": pa.ipc.MetadataVersion.V4},
        {"compression": "lz4"},
        {"compression": "zstd"},
    ],
)
@pytest.mark.parametrize("batches", [(VALUES,), (MIXED,), (VALUES, VALUES, VALUES.slice(0, 0))])
def test_sound_stream_gets_past(batches: tuple[pa.RecordBatch, ...], options: dict[str, object]) -> None:
    payload = stream(*batches, **options)
    check_claims(payload, Allowance(BYTES_MAX))
    check_claims(memoryview(b"odd" + payload)[3:], Allowance(BYTES_MAX))
    assert decode_arrow(payload).num_rows == sum(one.num_rows for one in batches)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers_take_what_they_decompress_to(compression: str) -> None:
    # values, their offsets; validity, values and offsets of the key. Buffers of a few bytes may stay as they are.
    assert 9_000 <= claimed(stream(VALUES, compression=compression)) <= VALUES.nbytes + 100
    assert claimed(stream(VALUES)) == claimed(stream(VALUES, compression=compression))
    twice = claimed(stream(VALUES, VALUES, compression=compression))
    assert twice == 2 * claimed(stream(VALUES, compression=compression))


def test_more_than_is_allowed_is_refused_before_it_is_unpacked() -> None:
    payload = stream(batch(value=pa.array([b"x" * (BYTES_MAX + 1)])), compression="zstd")
    assert len(payload) < 2_000
    with pytest.raises(PayloadTooLarge, match=r"at most 1000000 bytes unpacked, .* found 1000001"):
        check_claims(payload, Allowance(BYTES_MAX))


def test_size_that_was_forged_is_refused() -> None:
    payload = stream(batch(value=pa.array([b"x" * 2000])), compression="lz4")
    place = payload.rindex(struct.pack("<q", 2000))
    for forged, error in ((1 << 40, PayloadTooLarge), (-2, MalformedRecords), (-(1 << 63), MalformedRecords)):
        with pytest.raises(error, match=r"found -?[0-9]+"):
            check_claims(payload[:place] + struct.pack("<q", forged) + payload[place + 8 :], Allowance(BYTES_MAX))


def test_rows_without_bytes_are_counted() -> None:
    for columns in (
        batch(value=pa.nulls(300_000)),
        batch(value=pa.array([[None] * 300_000], pa.list_(pa.null()))),
        batch(value=pa.array([[None] * 300_000], pa.list_(pa.null(), 300_000))),
    ):
        with pytest.raises(PayloadTooLarge, match=r"found (300000|1) records with [36]0000[01] entries"):
            check_claims(stream(columns), Allowance(BYTES_MAX))


def test_dictionary_is_refused_by_name() -> None:
    encoded = batch(value=pa.array([b"x", b"x"]).dictionary_encode())
    with pytest.raises(MalformedRecords, match="expected plain columns, found one that is encoded by a dictionary"):
        check_claims(stream(encoded), Allowance(BYTES_MAX))


def test_batches_without_end_are_refused() -> None:
    check_claims(stream(*[VALUES.slice(0, 1)] * BATCHES_MAX), Allowance(10 * BYTES_MAX))
    with pytest.raises(MalformedRecords, match="at most 1024 record batches"):
        check_claims(stream(*[VALUES.slice(0, 1)] * (BATCHES_MAX + 1)), Allowance(10 * BYTES_MAX))


def test_allowance_is_one_for_all_partitions_of_a_request() -> None:
    allowance = Allowance(100)
    allowance.take(60)
    with pytest.raises(PayloadTooLarge, match="of which 40 are left in this request, found 41"):
        allowance.take(41)
    allowance.take(40)


@given(
    payload=st.sampled_from([stream(VALUES), stream(MIXED), stream(MIXED, compression="lz4")]),
    place=st.integers(0, 1500),
    noise=st.binary(max_size=12),
    cut=st.integers(0, 1500),
)
@example(payload=b"", place=0, noise=b"", cut=0)
@settings(max_examples=4 * settings.default.max_examples)
def test_whatever_arrives_is_judged_and_nothing_else_is_raised(
    payload: bytes, place: int, noise: bytes, cut: int
) -> None:
    damaged = (payload[:place] + noise + payload[place + len(noise) :])[: len(payload) - cut]
    try:
        taken = claimed(damaged)
        decoded = decode_arrow(damaged)
    except (MalformedRecords, PayloadTooLarge):
        return
    # Every buffer is a view of the payload, or was unpacked; several may be views of the same bytes.
    assert decoded.nbytes <= taken + 12 * len(damaged)


def test_allowance_that_is_spent_in_a_thread_sends_nothing_to_a_thread_again() -> None:
    """However many batches a request has, and whatever one of its partitions claimed in vain."""
    allowance = Allowance(1_000)
    for _ in range(10):
        allowance.take_batch()
    with pytest.raises(PayloadTooLarge):
        allowance.take(2**60)
    with pytest.raises(PayloadTooLarge):
        allowance.take_records(2**50, 2**50)
    allowance.take(1_000)
