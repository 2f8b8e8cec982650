"""The state diagrams of the design documents, drawn from the tables that the rules go by: of consumer groups, and of
transactional ids.

python tools/state_diagram.py           writes, on each page, the block between its two marker comments
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bus.consumer_groups.group import TRANSITIONS as GROUP_TRANSITIONS
from bus.transactions.state import TRANSITIONS as TRANSACTION_TRANSITIONS

DESIGN = Path(__file__).parent.parent / "docs" / "design"


@dataclass(frozen=True)
class Diagram:
    """The first state of the table is the one that all begins with."""

    page: Path
    name: str
    transitions: Mapping[Enum, Mapping[Enum, str]]

    def drawn(self) -> str:
        """In Mermaid, with an arrow for each transition."""
        arrows = [
            f"    {before.value} --> {state.value}: {why}\n"
            for state, befores in self.transitions.items()
            for before, why in befores.items()
        ]
        first = next(iter(self.transitions))
        return "".join(["```mermaid\nstateDiagram-v2\n", f"    [*] --> {first.value}\n", *arrows, "```\n"])

    def put_into(self, page: str) -> str:
        """The page with the diagram that there should be. Raises `ValueError` if it has not both markers."""
        begin, end = (f"<!-- {self.name} states: {which} -->\n" for which in ("begin", "end"))
        before, rest = page.split(begin)
        after = rest.split(end)[1]
        return before + begin + self.drawn() + end + after


DIAGRAMS = (
    Diagram(DESIGN / "consumer-groups.md", "group", GROUP_TRANSITIONS),
    Diagram(DESIGN / "transactions.md", "transaction", TRANSACTION_TRANSITIONS),
)


if __name__ == "__main__":
    for diagram in DIAGRAMS:
        diagram.page.write_text(diagram.put_into(diagram.page.read_text()))
