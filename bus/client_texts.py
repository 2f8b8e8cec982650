"""Texts from clients that the bus stores or repeats.

Texts that name a thing are bounded in bytes of UTF-8 and have no control characters, nor those that turn the direction
of what is shown, so that no log line and no table can be forged with them. All other text that somebody else has chosen
is escaped before a terminal or a log has it: a newline begins no line of a log and breaks no table, an escape sequence
recolours no terminal, and a mark of direction turns round nothing that stands behind it.
"""

from __future__ import annotations

import re
from typing import TextIO

from bus.errors import ErrorCode, Refused

REASON_LENGTH_MAX = 255  # Kafka's
CLIENT_ID_HEADER = "client-id"  # a header of every call: the client's name for itself
CLIENT_ID_BYTES_MAX = 255

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_CODES = [code for code in range(0x206A) if _CONTROL.match(chr(code))]
_IN_LINE = {code: repr(chr(code))[1:-1] for code in _CODES}
_IN_TEXT = {code: text for code, text in _IN_LINE.items() if chr(code) not in "\n\t"}
_IN_JSON = {code: f"\\u{code:04x}" for code in _IN_TEXT}

# Letters and marks that are not shown; `str.isprintable` knows the others.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def check_text(what: str, text: str, bytes_max: int, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Refused | None:
    """Why `text` is not taken as `what`, with `code`; an empty one is."""
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return Refused(code, f"expected {what} of whole characters, found {text[:REASON_LENGTH_MAX]!a}")
    if size > bytes_max:
        return Refused(code, f"expected {what} of at most {bytes_max} bytes, found {size}")
    control = _CONTROL.search(text)
    if control is not None:
        return Refused(
            code,
            f"expected {what} without control characters, found {control.group()!a} at position {control.start()}",
        )
    return None


def is_seen(name: str) -> bool:
    """True if people see each character of the name, and no blanks surround it: otherwise it looks like another
    name."""
    return name.isprintable() and name == name.strip() and _UNSEEN.search(name) is None


def check_user(what: str, name: str) -> Refused | None:
    """Why `what` means no user: no caller can prove to have such a name, so that it would have no effect."""
    # The end of a certificate's name may be a blank, which RFC 2253 writes behind a backslash.
    if is_seen(name.removesuffix("\\ ")):
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected {what} without characters that are not seen and blanks around the name, found "
        f"{name[:REASON_LENGTH_MAX]!a}",
    )


def shown(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    """Return the part of a client's text that a message or a log line may repeat."""
    return _CONTROL.sub(" ", text[:length_max])


def one_line(text: str) -> str:
    """Write out all that a terminal, or a reader of lines, takes for more than a character."""
    return text.translate(_IN_LINE) if _CONTROL.search(text) else text


def escape_controls(text: str, *, is_json: bool = False) -> str:
    """Write out what could control a terminal; lines and tabs stay. JSON stays JSON."""
    return text.translate(_IN_JSON if is_json else _IN_TEXT) if _CONTROL.search(text) else text


def text_for(stream: TextIO, text: str, *, is_json: bool = False) -> str:
    """Return it as `stream` is to have it: escaped if that is a terminal, unchanged otherwise."""
    return escape_controls(text, is_json=is_json) if stream.isatty() else text
