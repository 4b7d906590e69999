"""Free text up to the first of some marks, where something else begins: thinking up to its end, say."""

from __future__ import annotations

from collections.abc import Mapping

from .rules import EMPTY, Expr, Ref, Rules, alt, chars, complement, seq


def free_text(rules: Rules, marks: Mapping[str, Expr], *, may_end: bool) -> Expr:
    """Any text without a mark, then one of the marks and what belongs after it.

    With `may_end` the text may also end before any mark. At each character there is exactly one way to
    go on, so the engine has one thing to remember however long the text is.
    """
    # How much of a mark the text ends with says all that matters of what was written so far.
    starts = {mark[:n] for mark in marks for n in range(len(mark))} | {""}
    states = {start: rules.declare("text") for start in sorted(starts)}
    special = sorted(set("".join(marks)))
    for start, state in states.items():
        # By where they lead, the ranges of characters that lead there: what no mark has leads to the beginning.
        moves: dict[Expr, list[tuple[int, int]]] = {states[""]: list(complement(chars(*special)).ranges)}
        for char in special:
            moves.setdefault(_after(start + char, marks, states), []).append((ord(char), ord(char)))
        options = [seq(chars(*ranges), target) for target, ranges in moves.items()]
        rules.define(state, alt(*options, *([EMPTY] if may_end else [])))
    return states[""]


def _after(text: str, marks: Mapping[str, Expr], states: Mapping[str, Ref]) -> Expr:
    found = next((mark for mark in marks if text.endswith(mark)), None)
    if found is not None:
        return marks[found]
    return next(states[text[n:]] for n in range(len(text) + 1) if text[n:] in states)
