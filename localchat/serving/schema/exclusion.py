"""Whether the branches of `oneOf` plainly exclude each other, so that it is `anyOf`.

The objects of a branch may be closed, so that only the names that it declares are allowed (`closing.ClosedBy`). A value
is allowed if it matches one branch as it is written, so the other branch counts as open, as by the standard.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from .types import ALL_TYPES, is_nullable, listed_values, possible_types
from .walk import IN_PLACE, schemas_of_references

# Keywords with which an object may have other names than those in `properties`.
_OF_NAMES = frozenset((*IN_PLACE, "patternProperties", "propertyNames"))


class _Branch(NamedTuple):
    """What all values of a branch have, as far as that is plain."""

    types: frozenset[str]
    values: frozenset[Hashable]  # Those that it lists; empty: it lists none.
    # Of objects alone:
    required: frozenset[str]  # The names that each of them has.
    allowed: frozenset[str] | None  # All names that they may have, if the branch is closed; None: it is open.
    values_of: Mapping[str, frozenset[Hashable]]  # For names whose value is a listed one, the list.

    def excludes(self, other: _Branch) -> bool:
        """Whether no value of this branch matches the other one, even if the other one stays open.

        So it is if their types or their listed values differ, if the other one requires a name that this one does not
        allow, or if both require a name with different listed values.
        """
        common_types = self.types & other.types
        if not common_types or (self.values and other.values and not self.values & other.values):
            return True
        if common_types != {"object"}:
            return False
        if self.allowed is not None and not other.required <= self.allowed:
            return True
        names = self.required & other.required & self.values_of.keys() & other.values_of.keys()
        return any(not self.values_of[name] & other.values_of[name] for name in names)


def exclude_each_other(branches: Sequence[Any], root: Any, *, are_closed: bool) -> bool:
    """Whether it is plain that no value of a branch matches another one.

    Args:
        root: The schema in which references lead.
        are_closed: Whether objects that declare properties have no others.
    """
    if not all(isinstance(branch, dict) for branch in branches):
        return False
    pairs = itertools.permutations([_branch(schema, root, are_closed) for schema in branches], 2)
    return all(first.excludes(second) for first, second in pairs)


def _branch(schema: dict[str, Any], root: Any, are_closed: bool) -> _Branch:
    """A branch of these keywords, and those of the schemas to which its references lead."""
    parts = schemas_of_references(schema, root)
    required: frozenset[str] = frozenset().union(*(part.get("required", ()) for part in parts))
    properties = [item for part in parts for item in part.get("properties", {}).items()]
    values_of = {name: values for name, schema in properties if (values := _listed_values(schema, root))}
    is_open = any(part.get("additionalProperties", False) is not False or part.keys() & _OF_NAMES for part in parts)
    # A reference that was not followed may lead to more properties.
    is_closed = are_closed and bool(properties) and not is_open and "$ref" not in parts[-1]
    return _Branch(
        types=ALL_TYPES.intersection(*map(possible_types, parts))
        | ({"null"} if any(map(is_nullable, parts)) else set()),
        values=_listed_values(schema, root),
        required=required,
        allowed=required.union(name for name, _ in properties) if is_closed else None,
        values_of=values_of,
    )


def _listed_values(schema: Any, root: Any) -> frozenset[Hashable]:
    """The values that a schema lists, or the one to which its references lead; empty if it may have others."""
    parts = schemas_of_references(schema, root) if isinstance(schema, dict) else []
    return frozenset() if not parts or any(map(is_nullable, parts)) else listed_values(parts[-1])
