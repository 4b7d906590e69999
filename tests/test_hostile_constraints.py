"""Expensive constraints: each is refused, or is cheap enough not to delay other requests.

Work is limited in steps, so the table is the same on every machine. The deadlines are ten times the time of a slow
machine.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the real engine needs numpy")
pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

from localchat.serving.engine import Cancelled, Constraint, InvalidGrammar  # noqa: E402 - after the checks above
from localchat.serving.engine.compiling import CONVERT_STEPS, compiling, compiling_cancelled_by  # noqa: E402
from localchat.serving.engine.llama.grammar import MAX_STEPS, Grammar  # noqa: E402
from localchat.serving.engine.llama.vocabulary import Vocabulary  # noqa: E402
from localchat.serving.grammar import (  # noqa: E402
    Budget,
    GrammarError,
    TooMuchWork,
    check_grammar,
    choice_to_grammar,
    limited_to,
    regex_to_grammar,
    schema_to_grammar,
)
from localchat.serving.grammar.budget import SLICE  # noqa: E402

N_TOKENS = 30


def checked(grammar: str) -> str:
    check_grammar(grammar)
    return grammar


def rules(n: int, body: str, last: str) -> str:
    """Rules r0 to r[n], each of which consists of the next one."""
    return "root ::= r0\n" + "\n".join(body.format(n=i, next=i + 1) for i in range(n)) + f"\nr{n} ::= {last}"


WORDS = [f"value {n} of many" for n in range(15_000)]
OPTIONAL = "root ::= " + " ".join(f"r{n}?" for n in range(300)) + "".join(f"\nr{n} ::= [a-z]" for n in range(300))
DOUBLING = 'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "c"'
NUMBERS = [n / 1000 for n in range(12_000)]
NAMES = {f"p{n}": {"type": "integer"} for n in range(1000)}

# A function that makes the grammar; whether the grammar or a token is refused; the limit in seconds.
HOSTILE: dict[str, tuple[Callable[[], str], bool, float]] = {
    "regex with many .*": (lambda: regex_to_grammar(".*" * 200), False, 2),
    "pattern with many .*": (lambda: schema_to_grammar({"type": "string", "pattern": ".*" * 200}), False, 2),
    "many optional letters": (lambda: checked("root ::= " + "[a-z]? " * 3000), True, 5),
    "many optional rules": (lambda: checked(OPTIONAL), False, 3),
    "long enum": (lambda: schema_to_grammar({"enum": WORDS[:8000]}), False, 20),
    "long choice": (lambda: choice_to_grammar(WORDS[:8000]), False, 20),
    "long alternative": (lambda: checked("root ::= " + " | ".join(f'"{word}"' for word in WORDS)), True, 10),
    "ambiguous repetition": (lambda: regex_to_grammar("(a?){2000}a{2000}"), False, 2),
    "many states": (lambda: regex_to_grammar("(a|b)*a(a|b){300}"), False, 2),
    "counts within counts": (lambda: checked('root ::= (("a"|"b"){1,9999} ("a"|"b"){1,9999}){1,999}'), False, 2),
    "large counts": (lambda: checked('root ::= ("a"{1,999999999}){1,999999999}'), False, 2),
    "counted states": (
        lambda: schema_to_grammar({"type": "string", "pattern": "^(a|b)*a(a|b){12}$", "maxLength": 500}),
        True,
        5,
    ),
    "many patterns of one string": (
        lambda: schema_to_grammar({"type": "string", "allOf": [{"pattern": f"x{n}.*y"} for n in range(30)]}),
        True,
        15,
    ),
    "counted properties": (
        lambda: schema_to_grammar({"type": "object", "properties": NAMES, "minProperties": 400}),
        True,
        5,
    ),
    "stacks that double with each rule": (
        lambda: checked(rules(40, 'r{n} ::= r{next} "x" | r{next} "y"', '"z"')),
        True,
        10,
    ),
    "stacks that double with each character": (lambda: checked(DOUBLING), True, 5),
    "long chain of rules": (lambda: checked(rules(15_000, "r{n} ::= r{next}", '"z"')), False, 5),
    "long chain of empty rules": (lambda: checked(rules(15_000, "r{n} ::= r{next}", '"z"?')), False, 5),
    "long enum minus another": (
        lambda: schema_to_grammar({"enum": NUMBERS, "not": {"enum": [*NUMBERS[1:], "x"]}}),
        False,
        10,
    ),
    "deep constant": (lambda: schema_to_grammar({"const": deep(900)}), True, 5),
}


def deep(n: int) -> Any:
    value: Any = []
    for _ in range(n):
        value = [value]
    return value


def sample(grammar: str, vocabulary: Vocabulary) -> None:
    """Sample `a` as long as it is allowed, then any token, each within the limit of work."""
    one, chance = Grammar(Constraint(grammar), vocabulary), np.random.default_rng(1)
    a = vocabulary.tokenize("a", False, False)[-1]
    for _ in range(N_TOKENS):
        logits = chance.standard_normal(vocabulary.n_tokens).astype(np.float32)
        logits[a] = 100.0
        found = one.candidates(logits, 64, np.zeros(0, int))
        token = int(found["id"][found["logit"].argmax()])
        one.accept(token)
        if token in vocabulary.eog_tokens:
            return


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraint_is_refused_or_cheap(vocabulary: Vocabulary, name: str):
    make, is_refused, seconds = HOSTILE[name]
    start = time.thread_time()
    refused = None
    try:
        with limited_to(Budget(CONVERT_STEPS)):
            grammar = make()
        sample(grammar, vocabulary)
    except (GrammarError, TooMuchWork, InvalidGrammar) as error:
        refused = error
    assert (refused is not None) == is_refused, refused
    assert time.thread_time() - start < seconds


def test_work_of_a_token_is_bounded_in_steps(vocabulary: Vocabulary):
    one, a = Grammar(Constraint(DOUBLING, origin="grammar"), vocabulary), vocabulary.tokenize("a", False, False)[-1]

    def accept_many() -> None:
        for _ in range(50):
            one.accept(a)

    with pytest.raises(InvalidGrammar, match=f"'grammar' .* more than {MAX_STEPS:,} steps"):
        accept_many()


# Compiling beside other threads


def test_compiling_ends_when_it_is_cancelled():
    must_end, errors = threading.Event(), []

    def compile_forever() -> None:
        try:
            with compiling_cancelled_by(must_end.is_set), compiling(10**9) as budget:
                while True:
                    budget.spend(100)
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=compile_forever)
    thread.start()
    must_end.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert gc.isenabled()


def test_garbage_of_a_constraint_is_not_collected_at_once():
    """A garbage collection of all its objects would hold the GIL for up to a tenth of a second."""
    kept = []
    with compiling(10**6) as budget:
        assert not gc.isenabled()
        for _ in range(20):
            kept.append([[] for _ in range(2000)])
            budget.spend(SLICE)
    young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation=generation)}
    assert not any(id(one) in young for part in kept for one in part)


def test_one_thread_compiles_at_a_time():
    is_inside, n_done = threading.Lock(), 0

    def compile_some() -> None:
        nonlocal n_done
        with compiling(10**6) as budget:
            assert is_inside.acquire(blocking=False)
            for _ in range(50):
                is_inside.release()
                budget.spend(100)
                assert is_inside.acquire(blocking=False)
            is_inside.release()
        n_done += 1

    threads = [threading.Thread(target=compile_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert n_done == len(threads)


def test_budget_counts_steps_and_is_refilled_to_its_size():
    budget = Budget(100)
    budget.spend(100)
    budget.refill(500)
    assert budget.n_left == 100
    with pytest.raises(TooMuchWork, match="more than 100 steps"):
        budget.spend(101)
