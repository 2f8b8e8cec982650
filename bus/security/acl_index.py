"""All access control lists of a cluster, so kept that those about one resource and one principal are found at once.

Guards one promise: `find` gives exactly the bindings that a scan of all of them would. Immutable: a reader may keep one
as long as it likes; `AclIndexDraft` makes the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bus.security.acls import (
    ANY_NAME,
    ANY_PRINCIPAL,
    AclBinding,
    AclOperation,
    AclResource,
    AclResourceType,
    PatternType,
)

KeyT = TypeVar("KeyT")
_Pattern = tuple[AclResourceType, PatternType, str]
_Kind = tuple[AclResourceType, str, AclOperation]  # the string is the principal


@dataclass(frozen=True, slots=True)
class AclIndex:
    """Two with the same bindings are equal. The order of the bindings is that in which they were added."""

    bindings: Mapping[AclBinding, None] = field(default_factory=dict)
    # The rest follows from `bindings`. By pattern and principal, in the order of the bindings:
    by_principal: Mapping[tuple[_Pattern, str], tuple[AclBinding, ...]] = field(default_factory=dict, compare=False)
    by_kind: Mapping[_Kind, Mapping[AclBinding, None]] = field(default_factory=dict, compare=False)
    # the number of bindings with each pattern
    pattern_counts: Mapping[_Pattern, int] = field(default_factory=dict, compare=False)
    # the number of prefixes by type and length
    prefix_counts: Mapping[tuple[AclResourceType, int], int] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.bindings)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self.bindings)

    def __contains__(self, acl: AclBinding) -> bool:
        return acl in self.bindings

    def find(self, resource: AclResource, principal: str) -> Iterator[AclBinding]:
        """The bindings about the resource that are for the principal or for all of them; those with the nearest name
        first: its own, then `*`, then the longest prefix."""
        for pattern in self._patterns(resource):
            yield from self.by_principal.get((pattern, principal), ())
            if principal != ANY_PRINCIPAL:
                yield from self.by_principal.get((pattern, ANY_PRINCIPAL), ())

    def find_all(
        self, resource_type: AclResourceType, principal: str, operations: Iterable[AclOperation]
    ) -> Iterator[AclBinding]:
        """The bindings about these operations on any resource of the type that are for the principal or for all of
        them. Looks at no others."""
        for of in dict.fromkeys((principal, ANY_PRINCIPAL)):
            for operation in operations:
                yield from self.by_kind.get((resource_type, of, operation), ())

    def is_named(self, resource: AclResource) -> bool:
        """True if any binding is about the resource, for whichever principal."""
        return any(pattern in self.pattern_counts for pattern in self._patterns(resource))

    def _patterns(self, resource: AclResource) -> Iterator[_Pattern]:
        kind, name = resource.resource_type, resource.name
        yield kind, PatternType.LITERAL, name
        if name != ANY_NAME:
            yield kind, PatternType.LITERAL, ANY_NAME
        for length in sorted((length for of, length in self.prefix_counts if of is kind), reverse=True):
            if length <= len(name):
                yield kind, PatternType.PREFIXED, name[:length]


NO_ACLS = AclIndex()


class AclIndexDraft:
    """One use: `add` and `remove` any number of times, then `finish`. Nothing is copied before the first change."""

    def __init__(self, index: AclIndex) -> None:
        self._base = index
        self._copied: _Copied | None = None

    @property
    def bindings(self) -> Mapping[AclBinding, None]:
        return self._base.bindings if self._copied is None else self._copied.bindings

    def add(self, acl: AclBinding) -> None:
        assert acl not in self.bindings, f"expected a new binding, found one that is there: {acl}"
        self._copy().add(acl)

    def remove(self, acl: AclBinding) -> None:
        assert acl in self.bindings, f"expected a binding that is there, found {acl}"
        self._copy().remove(acl)

    def finish(self) -> AclIndex:
        return self._base if self._copied is None else self._copied.index()

    def _copy(self) -> _Copied:
        if self._copied is None:
            self._copied = _Copied(self._base)
        return self._copied


def index_of(acls: Iterable[AclBinding]) -> AclIndex:
    """Each binding once."""
    draft = AclIndexDraft(NO_ACLS)
    for acl in acls:
        draft.add(acl)
    return draft.finish()


class _Copied:
    """`_alike`: the bindings of each pattern and principal that is changed, in order. As tuples, many of them, one
    for each host, would all be copied at each change."""

    def __init__(self, base: AclIndex) -> None:
        self.bindings = dict(base.bindings)
        self._by_principal = dict(base.by_principal)
        self._alike: dict[tuple[_Pattern, str], dict[AclBinding, None]] = {}
        self._by_kind = dict(base.by_kind)
        # the values of `_by_kind` that were copied and may be changed
        self._own_kinds: dict[_Kind, dict[AclBinding, None]] = {}
        self._pattern_counts = dict(base.pattern_counts)
        self._prefix_counts = dict(base.prefix_counts)

    def add(self, acl: AclBinding) -> None:
        self.bindings[acl] = None
        self._those_alike(acl)[acl] = None
        self._kind(acl)[acl] = None
        self._count(_pattern_of(acl), 1)

    def remove(self, acl: AclBinding) -> None:
        del self.bindings[acl]
        del self._those_alike(acl)[acl]
        self._remove_of_kind(acl)
        self._count(_pattern_of(acl), -1)

    def _those_alike(self, acl: AclBinding) -> dict[AclBinding, None]:
        key = _pattern_of(acl), acl.principal
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = dict.fromkeys(self._by_principal.get(key, ()))
        return found

    def _kind(self, acl: AclBinding) -> dict[AclBinding, None]:
        """The bindings of its kind, to be changed."""
        kind = _kind_of(acl)
        if kind not in self._own_kinds:
            self._by_kind[kind] = self._own_kinds[kind] = dict(self._by_kind.get(kind, {}))
        return self._own_kinds[kind]

    def _remove_of_kind(self, acl: AclBinding) -> None:
        left = self._kind(acl)
        del left[acl]
        if not left:
            kind = _kind_of(acl)
            del self._by_kind[kind], self._own_kinds[kind]

    def _count(self, pattern: _Pattern, change: int) -> None:
        kind, pattern_type, name = pattern
        _add_to(self._pattern_counts, pattern, change)
        if pattern_type is PatternType.PREFIXED:
            _add_to(self._prefix_counts, (kind, len(name)), change)

    def index(self) -> AclIndex:
        for key, acls in self._alike.items():
            if acls:
                self._by_principal[key] = tuple(acls)
            else:
                self._by_principal.pop(key, None)
        return AclIndex(self.bindings, self._by_principal, self._by_kind, self._pattern_counts, self._prefix_counts)


def _pattern_of(acl: AclBinding) -> _Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


def _kind_of(acl: AclBinding) -> _Kind:
    return acl.resource_type, acl.principal, acl.operation


def _add_to(counts: dict[KeyT, int], key: KeyT, change: int) -> None:
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]
