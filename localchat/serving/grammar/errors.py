"""The errors of this package. Each names the place in the schema, pattern or grammar that is refused.

GrammarError            base class; `path` and `message`
  SchemaError           a JSON Schema that no grammar enforces exactly
  PatternError          a regular expression that is malformed or that no grammar expresses

Every public function of this package that can refuse its input raises one of these and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class GrammarError(ValueError):
    """The input cannot be converted to a grammar, or is a grammar that must not be matched."""

    path: str
    """The place in the input: a URI fragment (`#/properties/a/pattern`), or "" for the input as a whole."""
    message: str
    """What is wrong at that place, and what to do instead."""

    def __init__(self, path: str, message: str):
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class SchemaError(GrammarError):
    """A schema that is malformed, or that no grammar enforces exactly."""


class PatternError(GrammarError):
    """A regular expression that is malformed, or that no grammar expresses."""

    def __init__(self, message: str):
        super().__init__("", message)


class Interrupted(Exception):
    """The caller cancelled the work: the `pause` of a `Budget` raises this."""


class TooLarge(ValueError):
    """The constraints would need a grammar that is too large.

    The public functions raise a SchemaError in its place. They may also raise its subclass TooMuchWork unchanged.
    """


@contextmanager
def errors_located(path: str, *, too_deep: str = "is nested too deeply: use fewer levels") -> Iterator[None]:
    """Raise a GrammarError with this path in place of any other exception of the block.

    A GrammarError of the block passes unchanged, since its path is more exact, and so does Interrupted. `too_deep` is
    the message for a RecursionError.
    """
    try:
        yield
    except (GrammarError, Interrupted):
        raise
    except RecursionError:
        raise SchemaError(path, too_deep) from None
    except TooLarge as error:
        raise SchemaError(path, str(error)) from error
    except Exception as error:
        raise SchemaError(path, f"cannot be converted to a grammar ({type(error).__name__}: {error})") from error
