"""Items of a message as values, made one by one while they are looked at: a request may have thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Converted(Generic[MessageT, ValueT]):
    """`convert` applied to each of `messages`; each iteration converts again."""

    messages: Sequence[MessageT]
    convert: Callable[[MessageT], ValueT]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[ValueT]:
        return map(self.convert, self.messages)
