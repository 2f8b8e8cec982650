"""The guide to the life of a log: its commands and programs run, and its table of configs tells the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bus.settings.broker import BROKER_CONFIGS
from bus.settings.keys import LONG_MAX
from bus.settings.topic import TOPIC_CONFIGS
from tests.support.guides import DOCS, run_guide

GUIDE = (DOCS / "log-life.md").read_text("utf-8")
SECOND_MS = 1_000
_WORDS = {
    "second": SECOND_MS,
    "minute": 60 * SECOND_MS,
    "day": 86_400 * SECOND_MS,
    "GiB": 2**30,
}


@pytest.mark.timeout(400)  # a process for each command, of which each has a bound of its own
def test_every_block_of_the_guide_does_what_the_guide_says(tmp_path: Path) -> None:
    text = run_guide("log-life.md", tmp_path)
    lines = text.splitlines()
    for line in ("2 7 Ada-Maria", "3 9 Cy", "4 8 Beatrix"):
        assert line in lines, "the last record of each key"
    assert '"value": "Ada-Maria"' in text
    assert '"value": "Ada"' not in text, "it was overtaken"
    assert any(line.startswith("orders-0 starts at 600 from version ") for line in lines)


@pytest.mark.parametrize(
    ("topic_key", "broker_key", "default"),
    re.findall(
        r"^\| `([a-z.]+)` \| (`[a-z.]+`|the same) \| ([^|]+) \|", (DOCS / "log-life.md").read_text("utf-8"), re.M
    ),
)
def test_defaults_of_topics_are_what_the_guide_says(topic_key: str, broker_key: str, default: str) -> None:
    source = topic_key if broker_key == "the same" else broker_key.strip("`")
    assert is_told(TOPIC_CONFIGS[topic_key].default, default)
    assert is_told(BROKER_CONFIGS[source].default, default)


@pytest.mark.parametrize(
    ("key", "default"),
    re.findall(r"^\| `(log\.[a-z.]+)` \| ([^|`]+) \| [^|]+ \|$", GUIDE, re.MULTILINE),
)
def test_defaults_of_the_broker_are_what_the_guide_says(key: str, default: str) -> None:
    assert is_told(BROKER_CONFIGS[key].default, default)


def is_told(value: object, text: str) -> bool:
    """True if `text` is how people read `value`."""
    if isinstance(value, tuple):
        return text == f"`{','.join(value)}`"
    assert isinstance(value, (int, float))
    if text == "no bound":
        return value >= LONG_MAX
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * (_WORDS[unit.removesuffix("s")] if unit else 1) == value
