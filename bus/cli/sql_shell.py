"""What the prompt of `bus sql` does with a line: a statement, or a command that begins with a dot.

Knows nothing of terminals: sql_prompt.py reads the lines.
"""

from __future__ import annotations

import difflib
import fnmatch
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from bus.cli.failures import describe_failure, write_error
from bus.cli.output import LISTING_FORMATS
from bus.cli.sql_rows import TABLE_ROWS_DEFAULT, write_rows
from bus.errors import count_of
from bus.sql.statement import quote_if_odd

if TYPE_CHECKING:
    from bus.sql import Connection

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
            ".help": lambda _: click.echo(HELP),
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
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
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
            click.echo(f"{count_of(rows, 'row')} in {time.monotonic() - started:.3f} s", err=True)

    def _command(self, name: str, argument: str) -> None:
        command = self.commands.get({".exit": ".quit", ".schema": ".columns"}.get(name, name))
        if command is None:
            near = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(self.commands)}"
            write_error(f"no such command {name!r}; {hint}")
            return
        command(argument.strip())

    def _tables(self, pattern: str) -> None:
        for title, names in self.connection.tables().items():
            chosen = [name for name in names if fnmatch.fnmatchcase(name.casefold(), pattern.casefold() or "*")]
            if chosen:
                click.echo(f"{title}: {', '.join(chosen)}")

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
