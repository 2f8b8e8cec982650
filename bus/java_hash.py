"""Java's hash of a text, by which Kafka gives a group or a transactional id its partition.

Guards one promise: the same text gives the same number as in Kafka, in every process and for ever.
"""

from __future__ import annotations


def java_hash(text: str) -> int:
    """String.hashCode in 32 bits, taken without sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code


def java_abs(code: int) -> int:
    """Kafka's Utils.abs of such a hash: in Java the smallest number has no absolute value, and counts as 0."""
    return 0 if code == 0x80000000 else min(code, 0x100000000 - code)
