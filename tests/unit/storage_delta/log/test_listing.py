"""Names of the files of a log."""

from __future__ import annotations

from bus.storage_delta.log.listing import checkpoint_name, parse_checkpoint_name, parse_version_name, version_name


def test_version_and_checkpoint_names_have_twenty_digits() -> None:
    assert parse_version_name(version_name(7)) == 7
    assert parse_checkpoint_name(checkpoint_name(12)) == 12
    for name in ("7.json", "00000000000000000007.json.tmp", ".00000000000000000007.json", "_last_checkpoint"):
        assert parse_version_name(name) is None
        assert parse_checkpoint_name(name) is None
