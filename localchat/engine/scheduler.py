"""The scheduler: which tokens the next step computes. Pure bookkeeping of sequences, slots, cells and shared prefixes.

Knows nothing of llama.cpp, threads, clocks or text. There are no prefill and decode phases: a sequence has tokens
that are known and tokens that are computed, and each step computes some of the others. A step is `schedule()`, then
decoding the batch elsewhere, then `update()`.

A sequence may have a draft of its next tokens. They are computed behind the newest token as if they were known; those
that are not sampled in the end are removed from the KV cache.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator

from .batch import MIN_CHECKPOINT, Batch, Change, Clear, Cut, Evict, Part, Room, Sequence, Share
from .prefix import Match, PrefixTree, n_common_of

# All prompts begin alike, by the template: a common part has to be longer than that to be worth a turn of waiting.
_MIN_AWAITED = 16
# Prompt tokens of a step in which no sequence waits for its next token, at least. With more of them, cancels and new
# requests would wait longer.
_MIN_PROMPT_TURN = 512
# After the KV cache had no free cells for a batch that should have fitted, the scheduler plans with fewer cells: for
# one step, and for twice as many each time that it happens again soon.
_MAX_LIMITED_STEPS = 64
# A sequence that runs alone and finds no free cells this often in a row is given up.
_MAX_REFUSALS = 3
# Where sequences have cells of their own, chunks of prompts are multiples of this, and the remainder is computed apart:
# llama.cpp adds up attention in another order for this many rows of a sequence, or more, than for fewer.
_TILE_ROWS = 64
# There a prefix is copied if it has this many tokens at least. Fewer are computed as fast.
_MIN_SHARED = 4
# With more sequences than this a turn is full enough: guesses would take time from everybody.
_MAX_DRAFTING = 4


class Scheduler:
    """Sequences in order of arrival.

    The rule that keeps everything within its room: the tokens known of all running sequences together,
    shared ones once, never exceed the cells, so whatever runs can always be computed. What is finished
    or preempted rests in its slot, and is dropped by least recent use when its cells are needed.

    `bring`, where given, is called with who may start now, and may place what it knows of that prompt.
    `n_prompt_batch` bounds the prompt tokens of a turn in which others wait for their next token, and with a
    least size those of any turn; who measures turns sets it between them.
    """

    def __init__(self, room: Room, bring: Callable[[Sequence], None] | None = None):
        self.n_prompt_batch = room.n_batch
        self._room = room
        self._bring = bring
        self.reset()
        self.changes()  # at the start there is nothing to clear

    def reset(self) -> None:
        """Starts again without sequences and with an empty KV cache, whatever state an error left."""
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        # Cells to plan with, and for how many more steps these are fewer than there are.
        self._n_usable = self._room.n_cells
        self._n_limited_steps = 0
        self._n_refusals = 0
        self._n_good_steps = 0
        # Where sequences have cells of their own: what the next step is for, and the next chunk of a prompt.
        self._is_tile_next = False
        self._is_shortest_next = True
        self._tree = PrefixTree()
        self._free_slots = list(range(self._room.n_slots - 1, -1, -1))
        self._changes: list[Change] = [Clear(slot) for slot in range(self._room.n_slots)]

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence.

        Raises:
            ValueError: it could not run even alone (its tokens are more than the cells).
        """
        if not 0 < sequence.n_prompt < sequence.max_tokens <= self._room.n_cells:
            raise ValueError(
                f"a sequence of {sequence.n_prompt} prompt tokens and at most {sequence.max_tokens} in all "
                f"does not fit {self._room.n_cells} cells"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Ends a sequence, running or waiting. What it computed rests, unless it is not to be kept."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence, keep)

    @property
    def n_to_draft(self) -> int:
        """How many tokens each running sequence may guess for the next turn: none beside many others or a prompt."""
        n_running = len(self.running)
        if not 0 < n_running <= _MAX_DRAFTING or any(sequence.n_missing > 1 for sequence in self.running):
            return 0
        return self._room.n_drafted // n_running

    def schedule(self) -> Batch:
        """The next turn: first the newest token of every running sequence, then as much of the prompts as fits.

        Drafts have their place where no prompt has to be read, and in cells that nobody runs in.
        """
        self._make_room()
        self._preempt_suspended()
        self._admit()
        parts = tuple(self._parts())
        return Batch(self.changes(), parts)

    def changes(self) -> tuple[Change, ...]:
        """What is to be changed in the memory before anything else; each is told once."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def update(self, batch: Batch, drawn: list[list[int]]) -> None:
        """Enters what a decoded batch computed, and the tokens drawn for each of `batch.outputs()`, in that order.

        All tokens drawn for a part but the last one were in its draft; the rest of the draft is given up.
        """
        self._n_refusals = 0
        self._n_good_steps += 1
        if self._n_good_steps >= self._n_limited_steps:
            self._n_usable = self._room.n_cells
        if self._n_good_steps >= 2 * self._n_limited_steps:
            self._n_limited_steps = 0
        runs = iter(drawn)
        for part in batch.parts:
            run = next(runs) if part.wants_output else []
            n_kept = part.n_tokens - len(part.draft) + max(len(run) - 1, 0)
            tokens = part.tokens()
            self._tree.extend(part.slot, tokens if n_kept == part.n_tokens else tokens[:n_kept])
            part.sequence.n_computed += n_kept
            part.sequence.tokens.extend(run)
            if part.is_scored:
                part.sequence.n_scored = max(part.sequence.n_scored, part.sequence.n_computed)
            if n_kept < part.n_tokens:
                self._changes.append(Cut(part.slot, part.sequence.n_computed))

    def refuse(self, batch: Batch) -> bool:
        """Notes that the KV cache had no free cells for a batch, although it should have fitted.

        The next steps are planned with fewer cells: idle prefixes are evicted, and then the newest sequences
        preempted. After as many successful steps all cells count again. False if nothing can be given up: one
        sequence runs alone, and has been tried several times.
        """
        self._n_refusals += 1
        if len(self.running) == 1 and not self._tree.n_idle and not any(part.draft for part in batch.parts):
            return self._n_refusals < _MAX_REFUSALS
        self._n_usable = min(self._n_usable, self._tree.n_cells + batch.n_tokens - 1)
        self._n_limited_steps = min(max(2 * self._n_limited_steps, 1), _MAX_LIMITED_STEPS)
        self._n_good_steps = 0
        return True

    def n_known(self, sequence: Sequence) -> int:
        """How many tokens of a sequence need not be computed, if it starts now."""
        match = self._match(sequence)
        return 0 if match is None else match.length

    def resting(self) -> list[tuple[int, list[int]]]:
        """The slots that rest with their tokens, the least recent first."""
        return [(slot, self._tree.tokens(slot)) for slot in self._tree.idle()]

    def place(self, tokens: list[int]) -> int | None:
        """A slot that rests with these tokens, for who brings their cells after the changes; None without room."""
        n_least = self._tree.n_active_cells + self._n_to_compute + len(tokens)
        if n_least > self._n_usable or not (self._free_slots or self._tree.n_idle):
            return None
        while self._n_free < len(tokens) or not self._free_slots:
            self._drop_least_recent()
        slot = self._take_free_slot()
        self._tree.hold(slot)
        self._tree.extend(slot, tokens)
        self._tree.rest(slot)
        return slot

    def truncate(self, slot: int, n_tokens: int) -> None:
        """Gives up all tokens of an idle slot but the first ones."""
        if n_tokens < self._tree.length(slot):
            self._tree.resume(slot)
            self._tree.truncate(slot, n_tokens)
            self._tree.rest(slot)
            self._changes.append(Cut(slot, n_tokens))

    def discard(self, slot: int) -> None:
        """Gives up a slot that rests."""
        self._drop(slot)

    def forget(self) -> None:
        """Drops all that rests."""
        for slot in self._tree.idle():
            self._drop(slot)

    @property
    def n_cells_used(self) -> int:
        """Cells of running sequences."""
        return self._tree.n_active_cells

    @property
    def n_cells_resting(self) -> int:
        """Cells of prefixes that are kept in case they come again."""
        return self._tree.n_cells - self._tree.n_active_cells

    @property
    def _n_to_compute(self) -> int:
        return sum(sequence.n_missing for sequence in self.running)

    @property
    def _n_free(self) -> int:
        """Cells that neither hold something nor will when all that is known is computed."""
        return self._n_usable - self._tree.n_cells - self._n_to_compute

    def _make_room(self) -> None:
        while self._n_free < 0:
            if self._drop_least_recent():
                continue
            if len(self.running) == 1:
                return
            self._preempt_newest()

    def _admit(self) -> None:
        """Starts who waits, in order, while there is room; who waits for a part of somebody's prompt is passed by."""
        for sequence in list(self.waiting):
            if len(self.running) == self._room.n_running:
                return
            if sequence.is_suspended:
                continue
            if self._bring is not None:
                self._bring(sequence)
            match = self._match(sequence)
            if self._is_being_computed(sequence, match):
                continue
            if self.running and not self._fits(sequence, match):
                return
            self.waiting.remove(sequence)
            self._start(sequence, match)

    def _match(self, sequence: Sequence) -> Match | None:
        # The last token is always computed: its logits are what the sequence runs for.
        tokens = sequence.tokens[: sequence.n_scored] if sequence.is_to_score else sequence.tokens[:-1]
        if not self._room.can_cut:
            return self._tree.match_whole(tokens)
        match = self._tree.match(tokens, shortest=not self._room.is_unified)
        if match is not None and match.length < _MIN_SHARED and not self._room.is_unified:
            return None
        return match

    def _is_being_computed(self, sequence: Sequence, match: Match | None) -> bool:
        """Whether an older sequence is about to compute more of this one's tokens than are known by now."""
        if sequence.is_to_score:
            return False
        n_known = 0 if match is None else match.length
        return any(
            other.n_missing > 1
            and not other.is_to_score
            and other.id < sequence.id
            and self._n_to_share(other, sequence.tokens[:-1]) > max(n_known, other.n_computed, _MIN_AWAITED)
            for other in self.running
        )

    def _n_to_share(self, sequence: Sequence, tokens: list[int]) -> int:
        """How many of some tokens others will find in the memory, or as a copy of it, by what a sequence computes."""
        n_common = n_common_of(sequence.tokens, tokens, 0)
        n_checkpoint = sequence.n_prompt - 1
        if self._room.can_cut:
            return n_common
        return n_checkpoint if MIN_CHECKPOINT <= n_checkpoint <= n_common else 0

    def _fits(self, sequence: Sequence, match: Match | None) -> bool:
        n_new = len(sequence.tokens)
        if match is not None:
            n_new += self._tree.n_inactive_cells(match) - match.length
        # One more cell for everybody's next token: with less it would be preempted in the next turn.
        n_needed = self._tree.n_active_cells + self._n_to_compute + n_new + len(self.running) + 1
        return n_needed <= self._n_usable

    def _start(self, sequence: Sequence, match: Match | None) -> None:
        sequence.slot = self._slot_for(match)
        sequence.n_computed = 0 if match is None else match.length
        if sequence.n_cached is None:
            sequence.n_cached = sequence.n_computed
        _insert(self.running, sequence)
        self._make_room()

    def _slot_for(self, match: Match | None) -> int:
        """An active slot with the tokens of the match, and nothing else."""
        if match is not None and self._tree.is_idle(match.slot):
            n_more = self._tree.length(match.slot) - match.length
            if n_more == 0 or (n_more <= match.length and not self._room.is_unified):
                self._tree.resume(match.slot)
                if n_more:
                    self._tree.truncate(match.slot, match.length)
                    self._changes.append(Cut(match.slot, match.length))
                return match.slot
        if not self._free_slots:
            self._drop_least_recent(but=match)
        slot = self._take_free_slot()
        self._tree.hold(slot, match)
        if match is not None:
            self._changes.append(Share(match.slot, slot, match.length))
        return slot

    def _take_free_slot(self) -> int:
        """The lowest one: sequences with cells of their own are computed together if they are side by side."""
        slot = min(self._free_slots)
        self._free_slots.remove(slot)
        return slot

    def _release(self, sequence: Sequence, keep: bool) -> None:
        slot = sequence.slot
        assert slot is not None
        sequence.slot, sequence.n_computed, sequence.draft = None, 0, []
        twin = self._tree.twin(slot, exact=not self._room.can_cut) if keep else None
        if keep and twin is None and self._tree.length(slot):
            self._tree.rest(slot)
            return
        if twin is not None:
            self._tree.refresh(twin)
        self._drop(slot)

    def _preempt_newest(self) -> None:
        self._preempt(self.running[-1])

    def _preempt_suspended(self) -> None:
        """Gives the slots of suspended sequences to others that wait for one."""
        n_waiting = sum(not sequence.is_suspended for sequence in self.waiting)
        n_wanted = max(n_waiting - (self._room.n_running - len(self.running)), 0)
        for sequence in [sequence for sequence in self.running if sequence.is_suspended][:n_wanted]:
            self._preempt(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue: what it computed stays in the KV cache while there is space, and it goes on later."""
        self.running.remove(sequence)
        self._release(sequence, keep=True)
        _insert(self.waiting, sequence)

    def _drop_least_recent(self, but: Match | None = None) -> bool:
        slot = self._tree.least_recent(None if but is None else but.slot)
        if slot is None:
            return False
        tokens = tuple(self._tree.tokens(slot))
        self._tree.drop(slot)
        self._changes.append(Evict(slot, tokens))
        self._free_slots.append(slot)
        return True

    def _drop(self, slot: int) -> None:
        self._tree.drop(slot)
        self._changes.append(Clear(slot))
        self._free_slots.append(slot)

    def _parts(self) -> Iterator[Part]:
        """The newest token of each running sequence, with its draft, and the chunks of the prompts."""
        shares = self._plan()
        is_draftable = not any(sequence.n_missing > 1 for sequence in self.running)
        n_to_draft = self._room_for_drafts([*shares]) if is_draftable else 0
        # Where sequences have cells of their own, a pass computes as many rows of each.
        n_each = n_to_draft if self._room.is_unified else min((len(sequence.draft) for sequence in shares), default=0)
        first = 0
        for sequence, n_tokens in shares.items():
            # The token that is sampled behind the last one of a draft has its place, too.
            n_drafted = max(min(n_to_draft, n_each, sequence.max_tokens - len(sequence.tokens) - 1), 0)
            draft, sequence.draft = tuple(sequence.draft[:n_drafted]), []
            n_to_draft -= len(draft)
            assert sequence.slot is not None
            n_rows, wants_output = n_tokens + len(draft), n_tokens == sequence.n_missing
            yield Part(sequence, sequence.slot, first, n_rows, wants_output, draft, sequence.is_to_score)
            first += n_rows

    def _plan(self) -> dict[Sequence, int]:
        """How many tokens of which sequences this step computes."""
        decoding = [sequence for sequence in self.running if sequence.n_missing == 1][: self._room.n_batch]
        prefilling = [sequence for sequence in self.running if sequence.n_missing > 1]
        n_prompt = self.n_prompt_batch if decoding else max(self.n_prompt_batch, _MIN_PROMPT_TURN)
        n_left = self._room.n_batch - len(decoding)
        if self._room.is_unified:
            return {**dict.fromkeys(decoding, 1), **self._prompt_shares(prefilling, min(n_left, n_prompt))}
        long = [sequence for sequence in prefilling if sequence.n_missing >= _TILE_ROWS and not sequence.is_to_score]
        rest = [sequence for sequence in prefilling if sequence not in long]
        if long and (self._is_tile_next or not (decoding or rest)):
            self._is_tile_next = False
            return self._tile_chunk(long, n_prompt)
        self._is_tile_next = True
        shares = {**dict.fromkeys(decoding, 1), **self._prompt_shares(rest, n_left)}
        return dict(sorted(shares.items(), key=lambda share: share[0].slot or 0))

    def _tile_chunk(self, sequences: list[Sequence], n_prompt: int) -> dict[Sequence, int]:
        """The next chunk of one of these prompts: the shortest one, and the oldest one the next time."""
        sequence = min(sequences, key=_length_of_prompt) if self._is_shortest_next else sequences[0]
        self._is_shortest_next = not self._is_shortest_next
        n_tokens = min(sequence.n_missing, max(n_prompt, _TILE_ROWS), self._room.n_batch)
        return {sequence: n_tokens - n_tokens % _TILE_ROWS}

    def _prompt_shares(self, sequences: list[Sequence], n_tokens: int) -> dict[Sequence, int]:
        """How the prompt tokens of a step are divided: half to the shortest prompts, the rest in order of arrival.

        So a short prompt waits for about twice its own time, whatever else is there, and no flood of short ones
        keeps the oldest one from half of the machine. The length of a prompt is what was not cached of it.
        """
        shares = dict.fromkeys(sequences, 0)
        n_to_score = self._room.n_scored
        shortest_first = sorted(sequences, key=_length_of_prompt)
        for order, n_left in ((shortest_first, n_tokens // 2), (sequences, n_tokens)):
            n_left -= sum(shares.values())
            for sequence in order:
                n_more = min(self._n_to_read(sequence) - shares[sequence], n_left)
                if sequence.is_to_score:
                    n_more = min(n_more, n_to_score)
                    n_to_score -= n_more
                shares[sequence] += n_more
                n_left -= n_more
        return {sequence: n_share for sequence, n_share in shares.items() if n_share}

    def _n_to_read(self, sequence: Sequence) -> int:
        n_to_checkpoint = sequence.n_prompt - 1 - sequence.n_computed
        if self._room.can_cut or n_to_checkpoint <= 0 or sequence.n_prompt <= MIN_CHECKPOINT:
            return sequence.n_missing
        return n_to_checkpoint

    def _room_for_drafts(self, sequences: list[Sequence]) -> int:
        n_wanted = min(sum(len(sequence.draft) for sequence in sequences), self._room.n_drafted)
        if n_wanted == 0:
            return 0
        while self._n_free < n_wanted and self._drop_least_recent():
            pass
        return max(min(n_wanted, self._n_free), 0)


def _length_of_prompt(sequence: Sequence) -> int:
    """How many tokens of a prompt were not cached."""
    return sequence.n_prompt - (sequence.n_cached or 0)


def _insert(sequences: list[Sequence], sequence: Sequence) -> None:
    """Into its place by arrival."""
    sequences.insert(bisect([other.id for other in sequences], sequence.id), sequence)
