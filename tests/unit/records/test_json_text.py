"""JSON that is nested too deep is refused like any other text that is no JSON."""

from __future__ import annotations

import pytest

from bus.records.json_text import parse_json


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff", "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]
)
def test_what_is_no_json_or_nested_too_deep_raises_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


def test_each_object_passes_the_hook_from_the_innermost_on() -> None:
    assert parse_json(b'{"a":{"b":1}}', object_hook=lambda node: [*node.values()]) == [[1]]
