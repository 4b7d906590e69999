"""Schemas and the values that each accepts and rejects, for the tests of grammars."""

from __future__ import annotations

from .grammar_cases_objects import ARRAYS, COMBINATIONS, OBJECTS, REFERENCES
from .grammar_cases_values import ANYTHING, CONSTANTS, FORMATS, LENGTHS, NUMBERS, PATTERNS, TYPES

TOPICS = {
    "anything": ANYTHING,
    "type": TYPES,
    "constant": CONSTANTS,
    "length": LENGTHS,
    "pattern": PATTERNS,
    "format": FORMATS,
    "number": NUMBERS,
    "object": OBJECTS,
    "array": ARRAYS,
    "reference": REFERENCES,
    "combination": COMBINATIONS,
}
CASES = {f"{topic}: {name}": case for topic, cases in TOPICS.items() for name, case in cases.items()}
