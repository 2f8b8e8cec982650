"""Bold and coloured text, where it is wanted: on a terminal, unless NO_COLOR says no (https://no-color.org)."""

from __future__ import annotations

import os
from typing import Any, TextIO

import click


def styled(text: str, stream: TextIO, **style: Any) -> str:
    """`text` for `stream`, with the `style` that click knows."""
    return click.style(text, **style) if _has_colors(stream) else text


def _has_colors(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
