"""The prompt of `bus sql`: lines from a terminal, with history and completion."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from bus.cli.sql_shell import WORDS, SqlShell
from bus.errors import BusError, StorageFault, count_of
from bus.sql.statement import quote_if_odd

if TYPE_CHECKING:
    from bus.sql import Connection

_WORD = re.compile(r'[\w".*-]+$')
_KEYWORDS = "SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category = 'reserved'"


def run_prompt(connection: Connection, *, form: str, limit: int | None, is_timed: bool) -> None:
    """Until Ctrl-D or .quit."""
    shell = SqlShell(connection, form=form, limit=limit, is_timed=is_timed)
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=SqlCompleter(shell),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation="  -> ",
        enable_history_search=True,
    )
    click.echo(f"{count_of(len(connection.topics), 'topic')}. A statement ends with ;   .help tells more, Ctrl-D ends.")
    while not shell.is_over:
        try:
            text = session.prompt("bus> ")
        except KeyboardInterrupt:  # the line is given up
            continue
        except EOFError:
            return
        shell.handle(text)


def is_complete(text: str) -> bool:
    """Whether Enter runs it, or begins another line."""
    text = text.strip()
    return not text or text.startswith(".") or text.endswith(";") or text.casefold() in WORDS


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


def _history() -> History:
    """In a file of the user's own; without a place for one, as long as the prompt lasts."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    file = Path(state) / "bus" / "sql_history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


class SqlCompleter(Completer):
    """Commands, topics, views, the columns of those that are named already, and keywords."""

    def __init__(self, shell: SqlShell) -> None:
        self._shell = shell
        self._columns: dict[str, list[str]] = {}
        self._keywords = [name for (name,) in shell.connection.sql(_KEYWORDS)]

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.startswith(".") and " " not in before:
            yield from _matching(before, self._shell.commands)
            return
        found = _WORD.search(before)
        word = found[0] if found else ""
        try:
            names = [name for group in self._shell.connection.tables().values() for name in group]
            columns = self._columns_of([name for name in names if name.casefold() in document.text.casefold()])
        except (BusError, StorageFault):
            return  # a root that cannot be read is told when a statement runs
        yield from _matching(word, dict.fromkeys([*map(quote_if_odd, [*names, *columns]), *self._keywords]))

    def _columns_of(self, names: list[str]) -> list[str]:
        from bus.sql import SqlError

        for name in names:
            if name not in self._columns:
                try:
                    described = self._shell.connection.sql(f"SELECT * FROM {quote_if_odd(name)} LIMIT 0")
                    self._columns[name] = described.columns
                except SqlError:
                    self._columns[name] = []
        return list(dict.fromkeys(column for name in names for column in self._columns[name]))


def _matching(word: str, candidates: Iterable[str]) -> Iterator[Completion]:
    folded = word.casefold().strip('"')
    for candidate in candidates:
        if word and candidate.casefold().strip('"').startswith(folded):
            yield Completion(candidate, start_position=-len(word))
