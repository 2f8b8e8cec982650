"""Plain-text dialogues with the rules. A line is a command, `->` and its outcome; `#` begins a comment; an empty line
begins a new dialogue. `pytest tests/transcripts --rewrite` writes the outcomes that there are now: read the difference
and commit it only when its cause is understood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.group_dialogue import GroupDialogue
from tests.support.producer_dialogue import ProducerDialogue
from tests.support.transaction_dialogue import TransactionDialogue

FOLDER = Path(__file__).parent
OUTCOME_COLUMN = 36


class Dialogue(Protocol):
    def say(self, command: str) -> str: ...


DIALOGUES: dict[str, Callable[[], Dialogue]] = {
    "groups.txt": GroupDialogue,
    "producers.txt": ProducerDialogue,
    "transactions.txt": TransactionDialogue,
}


@pytest.mark.parametrize("name", DIALOGUES)
def test_transcript_is_what_the_rules_say(name: str, pytestconfig: pytest.Config) -> None:
    path = FOLDER / name
    expected = path.read_text()
    found = "".join(f"{line}\n" for line in spoken(expected, DIALOGUES[name]))
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(found)
    else:
        assert found == expected


def test_every_transcript_is_spoken() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.txt")) == sorted(DIALOGUES)


def spoken(transcript: str, begin: Callable[[], Dialogue]) -> Iterator[str]:
    dialogue = begin()
    for line in transcript.splitlines():
        if not line:
            dialogue = begin()
        if not line or line.startswith("#"):
            yield line
        else:
            command = line.split("->")[0].strip()
            yield f"{command:<{OUTCOME_COLUMN - 1}} -> {dialogue.say(command)}"
