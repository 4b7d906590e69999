"""JSON Schema to grammar: one table of schemas, with texts that the grammar must accept and reject."""

from __future__ import annotations

import random

import pytest

from localchat.serving.grammar import Budget, ByteAutomaton, check_grammar, schema_to_grammar

from .gbnf import generate, matches
from .grammar_cases import CASES
from .grammar_validator import has_double_names, is_valid


@pytest.mark.parametrize("name", CASES)
def test_grammar_accepts_only_the_texts_of_the_table(name: str):
    """This holds for llama.cpp's engine and localchat's automaton. Texts that the engine generates are valid, too."""
    case = CASES[name]
    grammar = schema_to_grammar(case.schema)
    check_grammar(grammar)
    for is_match in (matches, own_matches):
        assert [text[:200] for text in case.accept if not is_match(grammar, text)] == [], grammar
        assert [text[:200] for text in (*case.reject, *case.unused) if is_match(grammar, text)] == [], grammar
    random_ = random.Random(name)
    texts = [text for _ in range(2) if (text := generate(grammar, random_, 100)) is not None]
    assert [text for text in texts if not is_valid(text, case.schema) and not has_double_names(text)] == []


def own_matches(grammar: str, text: str) -> bool:
    automaton, budget = ByteAutomaton(grammar, "root", lambda name: None), Budget(10**9)
    state = automaton.walk(automaton.start, text.encode("utf-8", "surrogatepass"), budget)
    if state is not None:
        automaton.expand(state, budget)
    return state is not None and state.may_end


def test_table_agrees_with_a_validator():
    """Accepted and unused texts are valid, and rejected texts are not."""
    for name, case in CASES.items():
        assert [text[:200] for text in (*case.accept, *case.unused) if not is_valid(text, case.schema)] == [], name
        assert [text[:200] for text in case.reject if is_valid(text, case.schema)] == [], name
