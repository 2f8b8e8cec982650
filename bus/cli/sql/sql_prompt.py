"""The prompt of `bus sql`: lines from a terminal, with history and completion, and what is done with a line.

A line is a statement, or a command that begins with a dot. `SqlShell`, which runs it, knows nothing of terminals.
"""

from __future__ import annotations

import fnmatch
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from bus.cli.failures import describe_failure, write_error
from bus.cli.output import LISTING_FORMATS, echo
from bus.cli.sql.sql_rows import TABLE_ROWS_DEFAULT, write_rows
from bus.errors import BusError, StorageFault, count_of, did_you_mean, near_names
from bus.platform.signals import signal_of
from bus.sql.read_only import quote_if_odd

if TYPE_CHECKING:
    from bus.sql import Connection

_WORD = re.compile(r'[\w".*-]+$')
_KEYWORDS = "SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category = 'reserved'"


def run_prompt(connection: Connection, *, form: str, limit: int | None, is_timed: bool) -> None:
    """Prompt until Ctrl-D or .quit."""
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
    echo(f"{count_of(len(connection.topics), 'topic')}. A statement ends with ;   .help tells more, Ctrl-D ends.")
    while not shell.is_over:
        try:
            text = session.prompt("bus> ")
        except KeyboardInterrupt as interrupt:  # the line is given up
            _end_unless_typed(interrupt)
            continue
        except EOFError:
            return
        shell.handle(text)


def _end_unless_typed(interrupt: KeyboardInterrupt) -> None:
    """Raise `interrupt` again unless it is Ctrl-C: that ends a line or a statement. What a supervisor sends, or a
    terminal that is closed, ends the prompt."""
    if signal_of(interrupt) is not signal.SIGINT:
        raise interrupt


def is_complete(text: str) -> bool:
    """Return True if Enter runs it; else Enter begins another line."""
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
    """Keep the history in a file of the user's own; without a place for one, as long as the prompt lasts."""
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


HELP = """\
A statement ends with ; and may have several lines. Tab completes, the arrows go through what was typed before.
.tables [PATTERN]   topics and views, or those that match: .tables fl*
.columns NAME       the columns of a topic or view
.format FORM        table, json or csv
.limit N            rows of a table at most; .limit all
.timing on|off      how long statements take
.help               this
.quit               or Ctrl-D; Ctrl-C interrupts a statement"""

# What other prompts take without a dot.
WORDS = {"exit": ".quit", "quit": ".quit", "\\q": ".quit", "help": ".help", "\\?": ".help", "\\d": ".tables"}


class SqlShell:
    def __init__(self, connection: Connection, *, form: str, limit: int | None, is_timed: bool) -> None:
        self.connection = connection
        self.is_over = False
        self._form = form
        self._limit = limit
        self._is_timed = is_timed
        self.commands: dict[str, Callable[[str], None]] = {
            ".tables": self._tables,
            ".columns": self._columns,
            ".format": self._set_format,
            ".limit": self._set_limit,
            ".timing": self._set_timing,
            ".help": lambda _: echo(HELP),
            ".quit": self._quit,
        }

    def handle(self, text: str) -> None:
        """Failures are told and are no end; Ctrl-C ends the statement. What is a fault of the program is raised."""
        text = text.strip()
        text = WORDS.get(text.rstrip("; ").casefold(), text)
        if not text.strip("; \n\t"):
            return
        try:
            if text.startswith("."):
                self._command(*text.rstrip(";").partition(" ")[::2])
            else:
                self._statement(text)
        except KeyboardInterrupt as interrupt:
            _end_unless_typed(interrupt)
            echo("interrupted", err=True)
        except BrokenPipeError:
            raise
        except Exception as error:
            message = describe_failure(error)
            if message is None:
                raise
            write_error(message)

    def _statement(self, text: str) -> None:
        started = time.monotonic()
        result = self.connection.sql(text)
        rows = write_rows(result.schema, result.batches(), self._form, self._limit)
        if self._is_timed:
            echo(f"{count_of(rows, 'row')} in {time.monotonic() - started:.3f} s", err=True)

    def _command(self, name: str, argument: str) -> None:
        command = self.commands.get({".exit": ".quit", ".schema": ".columns"}.get(name, name))
        if command is None:
            hint = did_you_mean(near_names(name, self.commands)) or f"; known: {', '.join(self.commands)}"
            write_error(f"no such command {name!r}{hint}")
            return
        command(argument.strip())

    def _tables(self, pattern: str) -> None:
        for title, names in self.connection.tables().items():
            chosen = [name for name in names if fnmatch.fnmatchcase(name.casefold(), pattern.casefold() or "*")]
            if chosen:
                echo(f"{title}: {', '.join(chosen)}")

    def _columns(self, name: str) -> None:
        if not name:
            write_error("expected the name of a topic or view: .columns flights")
            return
        is_written = name.startswith(('"', "bus."))
        quoted = name if is_written else quote_if_odd(name)
        result = self.connection.sql(f"SELECT column_name, column_type FROM (DESCRIBE {quoted})")
        write_rows(result.schema, result.batches(), "table", None)

    def _set_format(self, form: str) -> None:
        if form not in LISTING_FORMATS:
            write_error(f"expected {', '.join(LISTING_FORMATS)}, found {form!r}")
        else:
            self._form = form

    def _set_limit(self, limit: str) -> None:
        if limit == "all":
            self._limit = 1 << 62
        elif limit.isdecimal():
            self._limit = int(limit)
        else:
            write_error(f"expected a number of rows, or all, found {limit!r}; the usual is {TABLE_ROWS_DEFAULT:,}")

    def _set_timing(self, word: str) -> None:
        if word not in ("on", "off"):
            write_error(f"expected on or off, found {word!r}")
        else:
            self._is_timed = word == "on"

    def _quit(self, _: str) -> None:
        self.is_over = True
