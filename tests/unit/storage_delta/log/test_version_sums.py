"""The checksum of a version file: whatever is changed in one is found, and one without a checksum counts as it is."""

from __future__ import annotations

import json
import re

import pytest

from bus.ports import ProducerProgress
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_files import encode_data_file
from bus.storage_delta.log.actions import (
    ChangedCommit,
    MalformedCommit,
    Signature,
    add_sum,
    check_sum,
    decode_commit,
    encode_append,
    encode_fence,
)
from tests.support.stores import NOW_MS, log_batch


def appended() -> bytes:
    encoded = encode_data_file([log_batch(0, [b"a", b"b"])], LOG_SCHEMA, name_suffix="x", compression="none")
    return encode_append(
        encoded.file,
        stats=encoded.stats,
        producers=[ProducerProgress(7, 0, 1)],
        signature=Signature(3, NOW_MS, "00000000-0000-0000-0000-000000000000", "life"),
    )


@pytest.mark.parametrize(
    "data", [appended(), encode_fence(high_watermark=2, signature=Signature(3, NOW_MS, "id", "life"))]
)
def test_every_changed_byte_of_a_version_is_found_but_in_the_name_of_the_sum(data: bytes) -> None:
    name = range(data.index(b'"fileCrc32"'), data.index(b'"fileCrc32"') + len(b'"fileCrc32":"'))
    decode_commit(1, data)
    for at in range(len(data) - 1):  # the newline at the end carries nothing
        if at in name:
            continue
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        with pytest.raises(MalformedCommit):
            decode_commit(1, bytes(changed))


def test_a_digit_that_contradicts_nothing_is_found() -> None:
    data = appended()
    with pytest.raises(ChangedCommit, match="has changed since it was written"):
        decode_commit(1, data.replace(b'"bus/7","version":1', b'"bus/7","version":0'))


def test_a_version_without_a_sum_counts_as_it_is() -> None:
    bare = re.sub(rb'"fileCrc32":"[0-9a-f]{8}",', b"", appended())
    assert decode_commit(1, bare) == decode_commit(1, appended())
    assert decode_commit(1, bare.replace(b'"version":1,', b'"version":0,')) != decode_commit(1, bare)


def test_only_the_commit_info_has_the_sum() -> None:
    lines = [{"commitInfo": {"actionCount": 2}}, {"txn": {"appId": '"fileCrc32":"00000000', "version": 1}}]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    check_sum(data)
    check_sum(add_sum(data))
