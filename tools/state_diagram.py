"""The state diagram of consumer groups in docs/design/consumer-groups.md, drawn from the table that the rules go by.

python tools/state_diagram.py           writes the block between its two marker comments
"""

from __future__ import annotations

from pathlib import Path

from bus.consumer_groups.group import TRANSITIONS, GroupState

PAGE = Path(__file__).parent.parent / "docs" / "design" / "consumer-groups.md"
BEGIN, END = "<!-- group states: begin -->\n", "<!-- group states: end -->\n"


def state_diagram() -> str:
    """A Mermaid diagram with an arrow for each transition."""
    arrows = [
        f"    {before.value} --> {state.value}: {why}\n"
        for state, befores in TRANSITIONS.items()
        for before, why in befores.items()
    ]
    return "".join(["```mermaid\nstateDiagram-v2\n", f"    [*] --> {GroupState.EMPTY.value}\n", *arrows, "```\n"])


def with_diagram(page: str) -> str:
    """The page with the diagram that there should be. Raises `ValueError` if it has not both markers."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return before + BEGIN + state_diagram() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text()))
