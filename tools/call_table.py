"""The table of what each call needs in docs/security.md, made from the rows of bus/broker_api/calls.py.

python tools/call_table.py              writes the table between its two marker comments
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bus.broker_api.calls import CALLS, CLUSTER_ACTION, Call, Need

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
BEGIN, END = "<!-- calls: begin -->\n", "<!-- calls: end -->\n"
HEAD = "| call | needs | sent to the controller | row of the audit |\n| --- | --- | --- | --- |\n"


def table() -> str:
    """A line for each call, except those that only brokers make."""
    return HEAD + "".join(_line(call) for call in CALLS.values() if CLUSTER_ACTION not in call.needs)


def put_into(page: str) -> str:
    """The page with the table that there should be. Raises `ValueError` if it has not both markers."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def _line(call: Call) -> str:
    kinds = (
        ("", call.needs),
        (", for each item of the request", call.item_needs),
        (", for each item of the answer", call.view_needs),
        (", for what it creates", call.creation_needs),
    )
    needs = "; ".join(_needs(needs) + which for which, needs in kinds if needs) or "nothing"
    audit = f"{call.audited.operation} {call.audited.resource_type}" if call.audited else ""
    return f"| {call.name} | {needs} | {'if need be' if call.is_forwarded else ''} | {audit} |\n"


def _needs(needs: Sequence[Need]) -> str:
    return ", ".join(map(_need, needs))


def _need(need: Need) -> str:
    more = "".join(f" (or {other})" for other in _others(need))
    return f"{need.operation.value} on {_resource(need)}{more}"


def _others(need: Need) -> Sequence[str]:
    instead = [_need(need.instead)] if need.instead else []
    return [
        *instead,
        *([f"{need.or_on_any.operation.value} on any {_resource(need.or_on_any)}"] if need.or_on_any else []),
    ]


def _resource(need: Need) -> str:
    return need.resource_type.name.lower().replace("_", " ")


if __name__ == "__main__":
    PAGE.write_text(put_into(PAGE.read_text()))
