"""What a text must look like to be a number, a date, a time: the same patterns for both engines and for inference.

The engines' own casts differ in what else they take (1.5 as a whole number, 2024-1-2 as a date, a time without a zone
in the zone of the session), so nothing reaches them that does not match. No backslashes: they are quoted differently.
"""

from __future__ import annotations

WHOLE = "-?[0-9]{1,19}"
NUMBER = "-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?"
BOOLEAN = "true|false"
DATE = "[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
ZONE = "Z|[-+](0[0-9]|1[0-7]):[0-5][0-9]"
TIMESTAMP = f"{DATE}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{{1,9}})?({ZONE})?"
