"""A draft model beside a large one: and prompt lookup, stepped by hand on fake backends."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localchat.serving.core.events import SampledTokens
from localchat.serving.engine.batch import Sequence
from localchat.serving.engine.drafts import DraftModel, Lookup
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import GenerationRequest

from .engines import Finish, request_for, step_until_idle, stepped, submit
from .fakes import END, N_VOCAB, FakeBackend


def rule(tokens: list[int], n_prompt: int) -> int:
    """A model whose next token depends on the last two. Its text does not soon repeat itself."""
    before, last = ([0, 0, *tokens])[-2:]
    return (before * 31 + last * 17 + 7) % 251


def other_rule(tokens: list[int], n_prompt: int) -> int:
    return (rule(tokens, n_prompt) + 1) % 251


def sometimes(tokens: list[int], n_prompt: int) -> int:
    """Differs from `rule` after about every fifth token."""
    return (rule if tokens[-1] % 5 else other_rule)(tokens, n_prompt)


def text_of(tokens: list[int], n: int) -> list[int]:
    text = list(tokens)
    for _ in range(n):
        text.append(rule(text, 0))
    return text[len(tokens) :]


def drafted(draft_model: DraftModel, *sequences: Sequence, n_tokens: int = 3) -> list[list[int]]:
    for sequence in sequences:
        sequence.draft = []
    draft_model.draft(list(sequences), n_tokens)
    return [sequence.draft for sequence in sequences]


def test_draft_is_the_text_of_the_small_model():
    draft_model = DraftModel(FakeBackend(rule), N_VOCAB)
    one, other = Sequence(1, [1, 2, 3], 100), Sequence(2, [9], 100)
    assert drafted(draft_model, one, other) == [text_of([1, 2, 3], 3), text_of([9], 3)]


def test_draft_has_one_token_more_than_were_accepted_of_the_last_one():
    draft_model, sequence = DraftModel(FakeBackend(rule), N_VOCAB), Sequence(1, [1, 2, 3], 100)
    lengths = []
    for n_accepted in (2, 0, 1, 2, 3, 3):
        (draft,) = drafted(draft_model, sequence, n_tokens=9)
        lengths.append(len(draft))
        sequence.tokens += [*draft[:n_accepted], (text_of(draft, 1)[0] + 1) % 250]
    assert lengths == [4, 3, 1, 2, 3, 4]


def test_only_new_tokens_are_computed_and_rejected_drafts_are_removed():
    backend = FakeBackend(rule)
    draft_model = DraftModel(backend, N_VOCAB)
    sequence = Sequence(1, [1, 2, 3], 100)
    (draft,) = drafted(draft_model, sequence)
    sequence.tokens += [draft[0], 99]
    assert drafted(draft_model, sequence, n_tokens=2) == [text_of(sequence.tokens, 2)]
    _, first, n_tokens, gives_output = backend.batches[-2][0]
    assert (first, n_tokens, gives_output) == (4, 1, True)


def test_long_prompt_is_prefilled_in_chunks_and_drafted_for_afterwards():
    backend = FakeBackend(rule, n_batch=10)
    draft_model, sequence = DraftModel(backend, N_VOCAB), Sequence(1, list(range(25)), 100)
    assert [bool(*drafted(draft_model, sequence)) for _ in range(3)] == [False, False, True]
    assert [record[0][2] for record in backend.batches[:3]] == [10, 10, 5]


def test_short_text_is_not_delayed_by_a_long_one():
    draft_model = DraftModel(FakeBackend(rule, n_batch=10), N_VOCAB)
    long, short = Sequence(1, list(range(25)), 100), Sequence(2, [1, 2], 100)
    assert drafted(draft_model, long, short) == [[], text_of([1, 2], 3)]


def test_next_turn_of_a_conversation_finds_its_cached_prefix():
    backend = FakeBackend(rule)
    draft_model, first = DraftModel(backend, N_VOCAB), Sequence(1, list(range(20)), 100)
    drafted(draft_model, first)
    draft_model.forget(first)
    following = Sequence(2, [*range(20), 7, 7], 100)
    assert drafted(draft_model, following) == [text_of(following.tokens, 3)]
    assert backend.batches[-3][0][1:3] == (20, 2)


def test_eog_ends_a_draft_and_an_id_beyond_the_vocabulary_is_not_drafted():
    def model(tokens: list[int], n_prompt: int) -> int:
        return END if len(tokens) == 4 else 7

    assert drafted(DraftModel(FakeBackend(model), N_VOCAB), Sequence(1, [1, 2, 3], 100)) == [[7, END]]
    assert drafted(DraftModel(FakeBackend(model), END), Sequence(1, [1, 2, 3], 100)) == [[7]]


def test_text_longer_than_the_small_models_context_gets_no_draft():
    draft_model = DraftModel(FakeBackend(rule, n_ctx=10), N_VOCAB)
    assert drafted(draft_model, Sequence(1, [1] * 8, 100)) == [[]]


def test_full_cache_costs_the_drafts_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    backend = FakeBackend(rule, n_real_cells=12)
    draft_model = DraftModel(backend, N_VOCAB)
    old, large, small = Sequence(1, [1] * 8, 100), Sequence(2, [2] * 20, 100), Sequence(3, [3] * 5, 100)
    assert drafted(draft_model, old)[0]
    draft_model.forget(old)
    # An ended text frees its cells; nothing is drafted any more for a text that does not fit.
    assert drafted(draft_model, small) == [text_of([3] * 5, 3)]
    assert drafted(draft_model, large) == [[]]
    with monkeypatch.context() as patched:
        # The text is not tried again, although its cells are free.
        patched.delattr(FakeBackend, "decode")
        assert drafted(draft_model, large) == [[]]
    draft_model.forget(large)
    draft_model.forget(small)
    assert drafted(draft_model, Sequence(4, [4] * 5, 100)) == [text_of([4] * 5, 3)]


def test_more_texts_than_slots_leave_some_without_drafts():
    draft_model = DraftModel(FakeBackend(rule, n_parallel=2), N_VOCAB)
    sequences = [Sequence(id, [id, id], 100) for id in range(3)]
    assert [len(draft) for draft in drafted(draft_model, *sequences)] == [3, 3, 0]
    draft_model.forget(sequences[0])
    assert [len(draft) for draft in drafted(draft_model, *sequences[1:])] == [3, 3]


def outputs(engine: Engine, requests: list[GenerationRequest]) -> list[list[int]]:
    generations = [submit(engine, request) for request in requests]
    step_until_idle(engine)
    items = [list(generation) for generation in generations]
    assert all(isinstance(of_one[-1], Finish) for of_one in items)
    return [[t.id for item in of_one if isinstance(item, SampledTokens) for t in item.tokens] for of_one in items]


@pytest.mark.parametrize("draft_rule", [rule, sometimes, other_rule], ids=["right", "mostly right", "wrong"])
@pytest.mark.parametrize("seed", range(4))
def test_texts_are_those_without_a_draft_model(draft_rule: Any, seed: int):
    random_ = random.Random(seed)
    requests = [
        request_for(tuple(random_.choices(range(200), k=random_.randint(1, 60))), max_tokens=40) for _ in range(6)
    ]
    expected = [text_of(list(request.prompt), 40) for request in requests]
    backend = FakeBackend(rule, max_drafted=12, n_parallel=3)
    draft = FakeBackend(draft_rule, n_parallel=3, n_batch=16)
    with stepped(backend, draft_backend=draft) as engine:
        assert outputs(engine, requests) == expected
        stats = engine.stats()
    assert (draft.is_closed, draft.n_samplers) == (True, 0)
    n_steps = sum(len(record) for record in backend.batches)
    assert (n_steps < 6 * 40) == (draft_rule is not other_rule)
    assert (stats.n_draft_accepted > 0) == (draft_rule is not other_rule)
    assert stats.n_drafted > 0


def test_small_model_that_is_always_wrong_drafts_one_token_a_step():
    draft = FakeBackend(other_rule)
    with stepped(FakeBackend(rule, max_drafted=12, n_ctx=1000), draft_backend=draft) as engine:
        (output,) = outputs(engine, [request_for((1, 2, 3), max_tokens=200)])
        assert output == text_of([1, 2, 3], 200)
        assert 0 < engine.stats().n_drafted < 210


# Prompt lookup.


def found(tokens: list[int], n_tokens: int = 4) -> list[int]:
    lookup = Lookup()
    assert lookup.index(tokens)
    return lookup.draft(tokens, n_tokens)


LOOKUPS: dict[str, tuple[list[int], list[int]]] = {
    "nothing": ([], []),
    "one": ([1], []),
    "one run": ([1, 2, 3], []),
    "no repetition": ([1, 2, 3, 4, 5], []),
    "a shorter run only": ([1, 2, 3, 4, 5, 6, 1, 2], []),
    "the shortest match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4]),
    "a longer match": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5], [6, 7, 8]),
    "the newest of two places": ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5]),
    "the place with more in common": ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9]),
    "one token again and again": ([7] * 8, [7, 7, 7, 7]),
    "two tokens again and again": ([5, 1, 2, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
}


@pytest.mark.parametrize(("tokens", "expected"), LOOKUPS.values(), ids=LOOKUPS)
def test_draft_is_the_continuation_of_the_longest_earlier_match(tokens: list[int], expected: list[int]):
    assert found(tokens) == expected


@pytest.mark.parametrize("seed", range(10))
def test_text_added_in_any_pieces_gives_the_same_draft(seed: int):
    random_ = random.Random(seed)
    tokens = random_.choices(range(3), k=200)
    lookup, n_known = Lookup(), 0
    while n_known < len(tokens):
        n_known = min(n_known + random_.randint(1, 20), len(tokens))
        lookup.index(tokens[:n_known])
        assert lookup.draft(tokens[:n_known], 8) == found(tokens[:n_known], 8)


def test_long_text_is_indexed_a_piece_at_a_time():
    tokens = [*range(20_000), 0, 1, 2]
    lookup = Lookup()
    assert [lookup.index(tokens) for _ in range(3)] == [False, False, True]
    assert lookup.draft(tokens, 2) == [3]
