"""What the clients are made of: no plain lock and no plain logger, under or in which a user's code could hang."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BUS = Path(__file__).parents[3] / "bus"
FILES = [
    *sorted(path for part in ("client", "aio", "processing", "oauth") for path in (BUS / part).rglob("*.py")),
    BUS / "key_material.py",
]
# A plain one waits for its own thread: a signal handler or a finalizer that comes back hangs.
PLAIN_LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event"}
# That of run() and run_listeners() is a program's own, which is documented as such.
EVENTS_OF_PROGRAMS = {"processing/run.py", "processing/consumer.py", "processing/listeners.py"}


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            yield node.func.value.id, node.func.attr, node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(BUS)))
def test_no_lock_is_plain_no_line_is_logged_by_itself_and_each_thread_has_a_name_of_ours(path: Path) -> None:
    for module, name, call in calls(path):
        if module == "threading" and name == "Thread":
            names = [ast.unparse(keyword.value).strip("f'\"") for keyword in call.keywords if keyword.arg == "name"]
            assert names, f"line {call.lineno}: expected a thread with a name"
            assert names[0].startswith(("bus-", "self._name", "name")), f"line {call.lineno}: found {names[0]}"
        if module == "threading" and name == "Event" and str(path.relative_to(BUS)) in EVENTS_OF_PROGRAMS:
            continue
        is_plain = module == "threading" and name in PLAIN_LOCKS
        assert not is_plain, f"line {call.lineno}: expected a lock of bus.reentry, found threading.{name}"
        assert (module, name) != ("logging", "getLogger"), f"line {call.lineno}: expected logger_of of bus.reentry"
