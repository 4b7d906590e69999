"""JSON Schema to grammar, judged by the real engine: what it takes, what it refuses, what cannot be said."""

from __future__ import annotations

import pytest

from localchat.grammar import schema_to_grammar

from .gbnf import matches
from .grammar_cases import CASES, Case
from .grammar_validator import is_valid

BY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@BY_CASE
def test_grammar_takes_exactly_the_documents(case: Case):
    grammar = schema_to_grammar(case.schema)
    wrong = [text[:200] for text in case.accept if not matches(grammar, text)]
    wrong += [text[:200] for text in (*case.reject, *case.unused) if matches(grammar, text)]
    assert not wrong, grammar


@BY_CASE
def test_table_agrees_with_a_validator(case: Case):
    """The table itself is right: what is unused is valid, and what is rejected is not, or is no good JSON."""
    wrong = [text[:200] for text in (*case.accept, *case.unused) if not is_valid(text, case.schema)]
    wrong += [text[:200] for text in case.reject if is_valid(text, case.schema)]
    assert not wrong
