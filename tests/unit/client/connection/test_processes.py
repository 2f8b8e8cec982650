"""Copies of a parent's connections in a child of a fork."""

from __future__ import annotations

import gc
import weakref

import pytest

from bus.client.connection import processes


class Connection:
    """Speaks to its broker when it is destroyed, as gRPC's does."""


def test_copy_that_a_child_drops_is_not_destroyed_there_and_one_that_a_parent_drops_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_inherited", [])
    monkeypatch.setattr(processes, "_has_connected", False)
    dropped, inherited = Connection(), Connection()
    found = [weakref.ref(connection) for connection in (dropped, inherited)]
    for connection in (dropped, inherited):
        processes.keep_in_children(connection)
    del dropped, connection
    gc.collect()
    processes._begin_in_child()
    del inherited
    gc.collect()
    assert [one() is None for one in found] == [True, False]
