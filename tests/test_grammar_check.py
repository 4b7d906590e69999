"""Grammars of requests: one that would hang or abort the process is refused."""

from __future__ import annotations

import contextlib
import random

import pytest

from localchat.serving.grammar import GrammarError, check_grammar, schema_to_grammar

from .gbnf import matches
from .grammar_cases import CASES
from .test_grammar import own_matches

HARMFUL = {
    "counts in the wrong order": ('root ::= "a"{5,4}', "smaller number first"),
    "left recursion": ('root ::= root "a" | "b"', "left recursion"),
    "indirect left recursion": ('root ::= a "x"\na ::= b | "y"\nb ::= root "z"', "left recursion"),
    "left recursion behind an empty rule": ('root ::= a root "x" | "y"\na ::= b\nb ::= "z"?', "left recursion"),
    "left recursion behind an empty group": ('root ::= (a)* ("" | [b]?) root | "y"\na ::= "b"', "left recursion"),
    "endless repetition": ('root ::= (a)*\na ::= b\nb ::= "z"?', "never ends"),
    "count of an empty group": ('root ::= ("a"?){2,3}', "never ends"),
    "deep groups": ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "deeper"),
    "undefined rule": ('root ::= "a" b', "refers to the rule b"),
    "unknown escape": (r'root ::= "\q"', "unknown escape"),
    "code point beyond Unicode": (r"root ::= [\U00110000]", "beyond"),
    "long": ("root ::= " + '"a" ' * 200_000, "characters"),
    "no root": ('other ::= "a"', "does not define the rule root"),
    "syntax error": ("root ::= %", "syntax error at character 9"),
    "rule without a name": ('"a"', "begin with a rule"),
    "nothing to repeat": ("root ::= *", "nothing before"),
    "group not closed": ('root ::= ("a"', "without its"),
    "group not opened": ('root ::= "a")', "without its"),
    "NUL": ('root ::= "a"\0 | "b"', "a NUL at character 12"),
    "half of a surrogate pair": ('root ::= "\ud800"', "surrogate pair at character 10"),
}


@pytest.mark.parametrize(("grammar", "words"), HARMFUL.values(), ids=HARMFUL.keys())
def test_harmful_grammar_is_refused(grammar: str, words: str):
    with pytest.raises(GrammarError, match=words):
        check_grammar(grammar)


HARMLESS = {
    "comments and lines": ('# a "comment" {5,4}\nroot ::= a | # one\n  b\na ::= "x" # end\nb ::= [#"]\n', ["x", "#"]),
    "escapes": (r'root ::= "\"{5,4}" [\]\\{-}]', ['"{5,4}]', '"{5,4}{']),
    "right recursion": ('root ::= "a" root | "b"', ["aab"]),
    "recursion in the middle": ('root ::= "(" root? ")"', ["()", "(())"]),
    "counts": ('root ::= "a"{2} "b"{1,} "c"{0,3} ("d" | "e"){ 1, 2 }', ["aabde"]),
    "group on several lines": ('root ::= (\n  "a"\n  | "b"\n)+', ["ab"]),
    "any character": ('root ::= . "x"', ["éx", "\U0010ffffx"]),
    "last character": (r"root ::= [\U0010FFFF] [^a]", ["\U0010ffff" * 2]),
}


@pytest.mark.parametrize(("grammar", "texts"), HARMLESS.values(), ids=HARMLESS.keys())
def test_harmless_grammar_passes_and_works(grammar: str, texts: list[str]):
    check_grammar(grammar)
    assert all(matches(grammar, text) and own_matches(grammar, text) for text in texts)


def test_random_changes_only_raise_grammar_errors():
    grammar, random_ = schema_to_grammar(CASES["reference: pydantic recursive model"].schema), random.Random(1)
    for _ in range(500):
        at = random_.randrange(len(grammar))
        text = grammar[:at] + random_.choice('(){}[]"|*,1a \\\n') + grammar[at + random_.randrange(20) :]
        with contextlib.suppress(GrammarError):
            check_grammar(text)


@pytest.mark.parametrize(
    ("grammar", "counts"),
    [
        ('root ::= "a"{0,5000}', {0: True, 5000: True, 5001: False}),
        ('root ::= "a"{2001}', {2000: False, 2001: True, 2002: False}),
        ('root ::= "a"{2500,} # at least', {2499: False, 2500: True, 9000: True}),
        ("root ::= x{3, 3000}\nx ::= [a]", {2: False, 3: True, 3000: True, 3001: False}),
        ('root ::= ( # one\n"a" | [b-c] # or two\n ) # counted\n {2100}', {2099: False, 2100: True, 2101: False}),
        ('root ::= ("a"{2} (("a")){2002}){0,2001}', {0: True, 2004: True, 2005: False, 4008: True}),
    ],
)
def test_repetitions_of_any_length_are_counted(grammar: str, counts: dict[int, bool]):
    check_grammar(grammar)
    assert {n: own_matches(grammar, "a" * n) for n in counts} == counts
