"""Exercises on random tokens that teach copying, lists and tool calls.

In a dialogue few tokens teach these skills, and a model can learn likely words instead of copying. In a drill all words
are random tokens from a small alphabet, so that the words before a token do not determine it; only its position does.
The text between the words is that of the template, so that the skill transfers to dialogues.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from .tokenizer import SPECIAL_TOKENS, Tokenizer

Tokens = list[int]
# The tokens of a row, and which of them are determined by those before.
Row = tuple[Tokens, list[bool]]

# Tokens of a row: enough for the tools and three calls in most rows, and for one call after the longest list.
LENGTH = 288
_MOST_ITEMS = 6
# The text before a value that a request mentions without its field, and before and after a field.
_BEFORE_A_VALUE = (" ", " in ", " as ", ", ", " for ", " with ", " to ", ", and ", " at ", ": ")
_AROUND_A_FIELD = (
    (" with ", " "),
    (", ", " "),
    (", ", ": "),
    (", the ", " is "),
    (" for ", " "),
    (" set the ", " to "),
)
_BETWEEN_VERB_AND_NOUN = (" the ", " a ", " my ")
_BETWEEN_REQUESTS = ("\n", "\n", ". ", " and ", ", and ", " and then ", ", then ", ". Then ", ". Also ")
# The separators of words within the name of a tool.
_JOINTS = ("_", "_", "_", "-", "")
_USER, _ASSISTANT, _END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"
_CALL, _ARGUMENTS, _CALL_END = '<tool_call>\n{"name": "', '", "arguments": {"', "\n</tool_call>"
MARKS = (
    *_BEFORE_A_VALUE,
    *(mark for marks in _AROUND_A_FIELD for mark in marks),
    *_BETWEEN_VERB_AND_NOUN,
    *_BETWEEN_REQUESTS,
    *_JOINTS[:-1],
    *(_USER, _ASSISTANT, _END, _CALL, _ARGUMENTS, _CALL_END, '": "', '": ', '", "', ', "', '{"', '"}}', "}}"),
    *("\n", "\n- ", ": ", ". ", "(", "string", "integer", "|", "=", ")\n"),
)


class Field(NamedTuple):
    """A parameter of a tool."""

    name: Tokens
    # The values of an enum; empty for a text or a number.
    options: list[Tokens]
    is_number: bool = False


class Tool(NamedTuple):
    """A tool. Its description is the verb and the noun."""

    verb: Tokens
    noun: Tokens
    name: Tokens
    fields: list[Field]


class _Writer:
    """Writes one row, with random words from its own alphabet of tokens ("letters")."""

    def __init__(self, rng: np.random.Generator, tokenizer: Tokenizer, letters: np.ndarray) -> None:
        self._rng = rng
        self._tokenizer = tokenizer
        n = int(np.exp(rng.uniform(np.log(5), np.log(200))))
        self._letters: Tokens = rng.choice(letters, n, replace=False).tolist()
        self.tokens: Tokens = []
        self.follows: list[bool] = []
        self._seen: set[int] = set()
        self._texts: list[Tokens] = []

    @property
    def is_full(self) -> bool:
        return len(self.tokens) > LENGTH

    def number(self, least: int, most: int) -> int:
        return int(self._rng.integers(least, most + 1))

    def chance(self, share: float) -> bool:
        return self._rng.random() < share

    def span(self, least: int, most: int) -> Tokens:
        """Random letters."""
        return [self._letters[i] for i in self._rng.integers(0, len(self._letters), self.number(least, most))]

    def spans(self, n: int, least: int, most: int) -> list[Tokens]:
        """`n` different spans, or fewer if the alphabet is too small."""
        found = {tuple(self.span(least, most)): None for _ in range(4 * n)}
        return [list(span) for span in found][:n]

    def joint(self) -> Tokens:
        """A separator of the words of a name."""
        return self._tokenizer.encode(_JOINTS[self.number(0, len(_JOINTS) - 1)])

    def fields(self) -> list[Field]:
        """A tool's fields; no two share an option."""
        free = self.spans(9, 1, 3)
        found = []
        for name in self.spans(self.number(1, 3), 1, 3):
            kind = self.number(0, 3)
            its_own = [free.pop() for _ in range(min(len(free), self.number(2, 3)))] if kind < 2 else []
            found.append(Field(name, its_own, kind == 3))
        return found

    def shuffled(self, n: int) -> list[int]:
        return self._rng.permutation(n).tolist()

    def write(self, tokens: Tokens, follows: bool = False) -> None:
        # A letter that the row has not had yet cannot be determined.
        self.follows += [follows and token in self._seen for token in tokens]
        self.tokens += tokens
        self._seen.update(tokens)

    def mark(self, text: str, follows: bool = False) -> None:
        """Write a text of `MARKS`."""
        tokens = self._tokenizer.encode_template(text)
        self.tokens += tokens
        self.follows += [follows] * len(tokens)

    def any_mark(self, texts: tuple[str, ...]) -> None:
        """Write one of these marks."""
        self.mark(texts[self.number(0, len(texts) - 1)])

    def write_purpose(self, tool: Tool) -> None:
        """Write the verb and the noun of a tool, as in descriptions and requests."""
        self.write(tool.verb)
        self.any_mark(_BETWEEN_VERB_AND_NOUN)
        self.write(tool.noun)

    def write_field(self, field: Field) -> None:
        """Write a field with its type, or with its options, each followed by the field's name, as in the template."""
        self.write(field.name)
        self.mark(": ")
        if not field.options:
            self.mark("integer" if field.is_number else "string")
        for i, option in enumerate(field.options):
            if i:
                self.mark("|")
            self.write(option)
            self.mark("=")
            self.write(field.name)

    def value_of(self, field: Field) -> Tokens:
        """A value of a field: one of its options, a number, or any text, which may look like a number."""
        if field.options:
            return field.options[self.number(0, len(field.options) - 1)]
        if field.is_number or self.chance(0.2):
            return self._tokenizer.encode(str(self.number(0, 10 ** self.number(1, 6))))
        text = self.span(1, 6) if self.chance(0.85) else self.span(6, 14)
        if self._texts and self.chance(0.4):
            # Some texts begin or end like an earlier one, as addresses and names do.
            other = self._texts[self.number(0, len(self._texts) - 1)]
            half = self.number(1, len(other))
            text = other[:half] + self.span(1, 2) if self.chance(0.6) else self.span(1, 2) + other[-half:]
        self._texts.append(text)
        return text

    def write_request(self, field: Field, value: Tokens, is_named: bool) -> None:
        """Write a value as a request mentions it, with or without the name of its field."""
        if is_named:
            before, between = _AROUND_A_FIELD[self.number(0, len(_AROUND_A_FIELD) - 1)]
            self.mark(before)
            self.write(field.name)
            self.mark(between)
        else:
            self.any_mark(_BEFORE_A_VALUE)
        self.write(value)

    def write_arguments(self, arguments: list[tuple[Field, Tokens]]) -> None:
        """Write the JSON of fields and values after the first quote, up to the closing braces."""
        for i, (field, value) in enumerate(arguments):
            self.write(field.name, True)
            self.mark('": ' if field.is_number else '": "', True)
            self.write(value, True)
            # A quote and the characters after it are one token.
            quote = "" if field.is_number else '"'
            self.mark(quote + (', "' if i < len(arguments) - 1 else "}}"), True)

    def row(self) -> Row:
        return self.tokens[: LENGTH + 1], self.follows[: LENGTH + 1]


def repetition(writer: _Writer) -> None:
    """A row that repeats one text."""
    text = writer.span(4, 60)
    writer.write(text)
    while not writer.is_full:
        writer.write(text, True)


def listing(writer: _Writer) -> None:
    """Requests that name items in one line, each answered with a list of the items."""
    while not writer.is_full:
        items = writer.spans(writer.number(2, _MOST_ITEMS), 1, 5)
        writer.mark(_USER)
        for i, item in enumerate(items):
            if i:
                writer.mark(", ")
            writer.write(item)
        writer.mark(_ASSISTANT)
        for i, item in enumerate(items):
            writer.mark("\n- ", bool(i))
            writer.write(item, True)
        writer.mark(_END, True)


def calls(writer: _Writer) -> None:
    """Lines that describe tools, then requests for one or two of the tools, each followed by the calls.

    Two tools differ in the verb, the noun or both.
    """
    verbs, nouns = (writer.spans(writer.number(1, 3), 1, 3) for _ in range(2))
    pairs = [(verb, noun) for verb in verbs for noun in nouns]
    tools = [_listed_tool(writer, *pairs[i]) for i in writer.shuffled(len(pairs))[: writer.number(1, 3)]]
    while not writer.is_full:
        requested = []
        writer.mark(_USER)
        for i in range(writer.number(1, 2)):
            if i:
                writer.any_mark(_BETWEEN_REQUESTS)
            tool = tools[writer.number(0, len(tools) - 1)]
            requested.append((tool.name, _requested_arguments(writer, tool)))
        writer.mark(_ASSISTANT)
        for i, (name, arguments) in enumerate(requested):
            if i:
                writer.mark("\n", True)
            writer.mark(_CALL, bool(i))
            writer.write(name, True)
            writer.mark(_ARGUMENTS, True)
            writer.write_arguments(arguments)
            writer.mark(_CALL_END, True)
        writer.mark(_END, True)


def _listed_tool(writer: _Writer, verb: Tokens, noun: Tokens) -> Tool:
    """Write the line of a tool. Some names have another word in place of the noun.

    camelCase has the same effect: the tokens of a capitalised word are different ones.
    """
    is_other = writer.chance(0.2)
    name = [*verb, *writer.joint(), *(writer.span(1, 3) if is_other else noun)]
    tool = Tool(verb, noun, name, writer.fields())
    writer.write(name)
    writer.mark(": ")
    if is_other or writer.chance(0.8):
        writer.write_purpose(tool)
        writer.mark(". ")
    writer.write(name)
    writer.mark("(")
    for i, field in enumerate(tool.fields):
        if i:
            writer.mark(", ")
        writer.write_field(field)
    writer.mark(")\n")
    return tool


def _requested_arguments(writer: _Writer, tool: Tool) -> list[tuple[Field, Tokens]]:
    """Write a request for a tool; returns the arguments in their order in the request.

    Some fields get no value. An option may be mentioned without its field, and so may the value of an only field.
    """
    writer.write_purpose(tool)
    arguments = []
    for i in writer.shuffled(len(tool.fields)):
        if i and writer.chance(0.25):
            continue
        field, value = tool.fields[i], writer.value_of(tool.fields[i])
        writer.write_request(field, value, writer.chance(0.5) or not (field.options or len(tool.fields) == 1))
        arguments.append((field, value))
    return arguments


def options(writer: _Writer) -> None:
    """Fields with their options, then requests that mention options, each followed by arguments with their fields.

    To find the field of an option is the hardest part of a call.
    """
    longest = writer.number(1, 3)
    names = writer.spans(writer.number(2, 5), 1, longest)
    free = writer.spans(4 * len(names), 1, longest)
    found = []
    for i, name in enumerate(names):
        field = Field(name, [free.pop() for _ in range(min(len(free), writer.number(1, 3)))])
        if i:
            writer.mark(", ")
        writer.write_field(field)
        found += [(field, option) for option in field.options]
    writer.mark(")\n")
    while not writer.is_full:
        requested = [found[i] for i in writer.shuffled(len(found))[: writer.number(1, 4)]]
        writer.mark(_USER)
        for field, option in requested:
            writer.write_request(field, option, is_named=False)
        writer.mark(_ASSISTANT)
        writer.mark('{"')
        writer.write_arguments(requested)
        writer.mark(_END, True)


_DRILLS: tuple[tuple[float, Callable[[_Writer], None]], ...] = (
    (0.05, repetition),
    (0.05, listing),
    (0.45, calls),
    (0.45, options),
)


def _letters(tokenizer: Tokenizer) -> np.ndarray:
    """The tokens that occur in no mark."""
    marks = {token for mark in MARKS for token in tokenizer.encode_template(mark)}
    return np.setdiff1d(np.arange(len(tokenizer.tokens) - len(SPECIAL_TOKENS)), list(marks))


def drill_rows(rng: np.random.Generator, tokenizer: Tokenizer, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all kinds: tokens [rows, LENGTH + 1], and whether each is determined by those before."""
    tokens = np.zeros((rows, LENGTH + 1), np.int64)
    follows = np.zeros((rows, LENGTH + 1), bool)
    letters = _letters(tokenizer)
    for i, kind in enumerate(rng.choice(len(_DRILLS), rows, p=[share for share, _ in _DRILLS])):
        writer = _Writer(rng, tokenizer, letters)
        _DRILLS[kind][1](writer)
        tokens[i], follows[i] = writer.row()
    return tokens, follows
