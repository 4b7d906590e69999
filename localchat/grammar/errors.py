"""What can be wrong with a schema, a pattern or a list of choices."""

from __future__ import annotations


class SchemaError(ValueError):
    """A schema asks for what the grammar cannot honour exactly.

    `path` is the place in the schema as a URI fragment (`#/properties/a/pattern`); `message` says what
    is not supported there and what to do instead.
    """

    def __init__(self, path: str, message: str):
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class PatternError(ValueError):
    """A regular expression that is malformed, or that no grammar can express."""


class TooLarge(ValueError):
    """Constraints that can only be met together by an unreasonably large grammar."""
