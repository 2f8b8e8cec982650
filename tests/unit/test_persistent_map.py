from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.persistent_map import PersistentMap

KEYS = st.integers(0, 400)
CHANGES = st.lists(st.dictionaries(KEYS, st.integers() | st.none(), max_size=300), max_size=6)


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_it_is_what_a_dict_would_be(first: dict[int, int], changes: list[dict[int, int | None]]) -> None:
    found, expected = PersistentMap(first), dict(first)
    for change in changes:
        found = found.changed(change)
        expected.update({key: value for key, value in change.items() if value is not None})
        expected = {key: value for key, value in expected.items() if change.get(key, value) is not None}
        assert found == expected
        assert len(found) == len(expected)
        assert all((key in found) == (key in expected) and found.get(key) == expected.get(key) for key in range(401))


def test_the_holder_of_one_keeps_what_it_saw() -> None:
    before = PersistentMap({1: "a", 2: "b"}).changed({3: "c"})
    before.changed({1: "z"})
    before.changed({2: None, 3: None})
    assert before == {1: "a", 2: "b", 3: "c"}


def test_a_change_to_many_entries_does_not_copy_them() -> None:
    many = PersistentMap(dict.fromkeys(range(100_000), "x"))
    assert many.changed({5: "y"})._settled is many._settled
    assert many.changed({7: None})._settled is many._settled


def test_what_was_changed_lately_stays_small() -> None:
    changing = PersistentMap(dict.fromkeys(range(10), 0))
    for value in range(2_000):
        changing = changing.changed({value: value})
        assert len(changing._recent) <= 256


def test_a_missing_entry_is_a_key_error_or_the_default() -> None:
    changing = PersistentMap({1: "a", 2: "b"}).changed({2: None})
    assert changing.get(1) == "a"
    assert changing.get(2) is None
    assert changing.get(3, "other") == "other"
    for key in (2, 3):
        with pytest.raises(KeyError):
            changing[key]
