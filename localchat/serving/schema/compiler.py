"""llguidance, which compiles and enforces grammars: the grammar of a prepared schema, and the reason of a refusal."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from .walk import subschemas

# What may be between the parts of JSON, as in llama.cpp: a space, or a line break with an indentation.
_SPACE = "[ ]|\\n[ ]{0,40}"
WITHOUT_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
"""The option with which no text has an escape of the form \\uXXXX."""

NO_VALUE = "no value matches it"
"""The reason of a refusal of a schema that contradicts itself."""
OVERLAP = "the branches of 'oneOf' may overlap"
"""The reason of a refusal of `oneOf` if a value may match two of its branches."""
COUNT = "'minProperties' and 'maxProperties' need all declared properties to be required"
"""The reason of a refusal of the number of properties."""

# What the reason of llguidance for a refusal contains, and the words of the server for it.
_REASONS = (
    (r"oneOf constraints", OVERLAP),
    (r"not disjoint|disjoint", "two patterns of 'patternProperties' may match the same name"),
    (r"min/maxProperties", COUNT),
    (r"Unable to determine", "patterns that apply to one text are too complex together"),
    (r"circular", "a reference to itself has other keywords beside it"),
    (r"[Uu]nsatisfiable|is empty|no lexeme", NO_VALUE),
    (r"too large|too many|limit|exceed|too big|fuel", "it is too large, or nested too deeply"),
    (r"look-?a|look-?b|backref", "patterns with look-around or back-references are not supported"),
    (r"regex|repetition|character class|escape|unclosed|unopened", "its regular expression is not supported"),
    (r"[Rr]eference|Pointer|[Uu]nresolv|[Rr]etriev|resource", "it has a '$ref' that leads to no part of the schema"),
    (r"number|integer|f64|Decimal|multiple", "a number in it is not supported"),
)


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a prepared schema."""
    schema = {} if schema is True else schema
    if isinstance(schema, dict):
        options = {**schema.get("x-guidance", {}), "whitespace_pattern": _SPACE}
        if forbids_escapes(schema):
            options.update(WITHOUT_ESCAPES)
        schema = {**schema, "x-guidance": options}
    return f"%json {json.dumps(schema)}"


def forbids_escapes(schema: dict[str, Any]) -> bool:
    r"""Whether no text has \u escapes, with which a listed name could be written as another name."""
    is_lenient = schema.get("x-guidance", {}).get("lenient")
    return not is_lenient and any(has_other_names(node) for _, node in subschemas(schema))


def has_other_names(schema: Any) -> bool:
    """Whether objects of a schema may have names beside those that it lists."""
    names = isinstance(schema, dict) and any(map(schema.get, ("properties", "required", "patternProperties")))
    return bool(names) and schema.get("additionalProperties", True) is not False


def error_in(grammar: str) -> str:
    """Why llguidance refuses a grammar, in the words of the server; "" if it accepts it."""
    from llguidance import LLMatcher

    reason = LLMatcher.validate_grammar(grammar).split("\n")[0]
    words = (text for pattern, text in _REASONS if re.search(pattern, reason))
    return next(words, "it cannot be read as a grammar") if reason else ""


@functools.lru_cache(1)
def _tokenizer() -> Any:
    """A tokenizer with a token for each byte."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def is_empty(grammar: str, start: str = "") -> bool:
    """Whether a grammar matches no text that begins with `start`.

    False for a grammar that llguidance refuses: `error_in` has the reason.
    """
    from llguidance import LLMatcher

    matcher = LLMatcher(_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        return False
    tokens = [*start.encode()]
    n_taken = matcher.try_consume_tokens(tokens) if tokens else 0
    # The first 32 bytes of the mask are those of the 256 bytes; the end of the text follows.
    return n_taken < len(tokens) or not (matcher.is_accepting() or any(matcher.compute_bitmask()[:32]))
