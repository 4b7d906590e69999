"""`python -m tools.formats [FILES or FOLDERS]`: whether chat templates and output parsers agree.

For each template (a .jinja file, or the one in a .gguf): an assistant's message with thinking, text and calls
is rendered, what the model would have generated is cut out, and that is parsed. The same message has to come
back, however the text is cut into pieces. Prints a table, and ends with 1 if any template fails. Without an
argument it takes the project's own templates, one for each family.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localchat.dialects import Dialect
from localchat.dialects.parser import OutputParser, merged
from localchat.models.gguf import read_header
from localchat.prompt.errors import TemplateError
from localchat.prompt.segments import text_of
from localchat.prompt.template import ChatTemplate
from localchat.protocol.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart

OWN = Path(__file__).parents[1] / "tests" / "data" / "templates"

BOS, EOS = "<s>", "</s>"
# Tokens that end a turn, where their texts do not show in a turn of text alone. Parsers never see such tokens.
ENDS = (
    "<|call|>",
    "<|calls|>",
    "<|eom_id|>",
    "[e~[",
    "<SPECIAL_12>",
    "<\uff5chy_eos:opensource\uff5c>",
    "<|tool_response>",
)

Tools = Sequence[Mapping[str, Any]]

THOUGHT = "The forecast is needed.\nAnd the time?"
TEXT = "I will look it up."
WEATHER = {"city": 'São "Paulo" <1>\n2nd line', "days": 3, "exact": True, "area": {"around": [1.5, 2, "x"]}}
CALLS: tuple[tuple[str, Any], ...] = (("get_weather", WEATHER), ("get_time", {}))
TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather forecast.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "integer", "description": "How many."},
                    "exact": {"type": "boolean", "description": "Or roughly."},
                    "area": {"type": "object", "additionalProperties": {"type": "array"}, "description": "Where."},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time of day.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)
QUESTION = {"role": "user", "content": "What is the weather like?"}
# What a caller may say about thinking: by which of these the history fits the prompt depends on the template.
SWITCHES: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking_mode": "enabled"},
)


@dataclass(frozen=True)
class Message:
    """An answer: what goes into a template, and what comes out of a parser."""

    thought: str = ""
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        calls = [
            {
                "id": f"call_{i:024}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(self.calls)
        ]
        thought = {"reasoning_content": self.thought} if self.thought else {}
        return {"role": "assistant", "content": self.text, **thought, **({"tool_calls": calls} if calls else {})}


MESSAGES = {
    "thinking, text and calls": Message(THOUGHT, TEXT, CALLS),
    "thinking and a call": Message(THOUGHT, "", CALLS[:1]),
    "a call": Message("", "", CALLS[:1]),
    "calls": Message("", "", CALLS),
    "text and a call": Message("", TEXT, CALLS[:1]),
    "thinking and text": Message(THOUGHT, TEXT),
    "text": Message("", TEXT),
}


@dataclass(frozen=True)
class Row:
    """One template's line of the table. `failures` say what went wrong, `notes` what the template does not show."""

    name: str
    format: str
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check(name: str, source: str) -> Row:
    """Render and parse every message of the table."""
    try:
        template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    except TemplateError as error:
        return Row(name, "?", (str(error),))
    failures: list[str] = []
    notes: dict[str, list[str]] = {}
    shows_calls = False
    for what, message in MESSAGES.items():
        try:
            prompt, output = generated(template, message)
            expected = _shown(message, output)
            found = _parsed(template.dialect, prompt, output)
        except TemplateError as error:
            notes.setdefault(f"refuses ({error})", []).append(what)
            continue
        except ValueError as error:
            failures.append(f"{what}: {error}, in {output!r}")
            continue
        for part in ("thought", "text", "calls"):
            if getattr(expected, part) != getattr(message, part):
                notes.setdefault(f"does not show the {part} of", []).append(what)
        if expected.text and found.thought.strip() == expected.text:
            # So does gpt-oss's with what is said beside calls, and Nemotron Nano's with the last message.
            notes.setdefault("shows the text as thought of", []).append(what)
            expected = replace(expected, thought=found.thought, text="")
        shows_calls = shows_calls or bool(expected.calls)
        if found != expected:
            failures.append(f"{what}: {output!r} after {prompt[-40:]!r} was read as {found}")
    if not shows_calls:
        failures.append("shows no calls")
    told = (f"{verb} {', '.join(items) if len(items) < len(MESSAGES) else 'anything'}" for verb, items in notes.items())
    return Row(name, template.dialect.name, tuple(failures), tuple(told))


def generated(template: ChatTemplate, message: Message) -> tuple[str, str]:
    """The prompt that the model saw, as far as its history keeps it, and what the model then wrote."""
    ways: list[tuple[bool, bool, int, str, str]] = []
    for switches in SWITCHES:
        prompt = _rendered(template, switches)
        whole = _rendered(template, switches, message)
        start = _common_start(prompt, whole)
        end = _turn_end(whole, _rendered(template, switches, Message(text=TEXT + "?")))
        output = _first_turn(whole[start:], (end, *ENDS), template.dialect)
        opening = prompt[start:].strip()
        # History may leave out what opened the thinking.
        is_open = opening == template.dialect.reasoning.start and output.startswith(message.thought)
        is_whole = start == len(prompt) or (is_open and bool(message.thought))
        ways.append((message.thought in output, is_whole, -len(ways), prompt if is_whole else whole[:start], output))
    return max(ways)[-2:]


def _rendered(template: ChatTemplate, switches: Mapping[str, Any], *messages: Message) -> str:
    said = [QUESTION, *(message.as_json() for message in messages)]
    segments = template.render(said, tools=TOOLS, add_generation_prompt=not messages, variables=switches)
    return text_of(segments)


def _common_start(prompt: str, whole: str) -> int:
    """Where the history leaves the prompt; not within a marker."""
    n = next((n for n, (a, b) in enumerate(zip(prompt, whole)) if a != b), min(len(prompt), len(whole)))
    if n == len(prompt):
        return n
    opened = prompt.rfind("<", 0, n)
    n = opened if opened > prompt.rfind(">", 0, n) else n
    # What instructs the model at the end of a prompt is not in the history, and the header after it is.
    return n + next((size for size in range(len(whole) - n, 0, -1) if prompt.endswith(whole[n : n + size])), 0)


def _turn_end(*texts: str) -> str:
    """The common end of both texts, from the first marker in it on."""
    pairs = zip(*(reversed(text) for text in texts))
    n = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    start = texts[0].find("<", len(texts[0]) - n)
    return texts[0][start:].rstrip() if start >= 0 else ""


def _first_turn(output: str, ends: Sequence[str], format: Dialect) -> str:
    """Up to the first end of a turn: some templates show text and calls as two. What the format reads is no end."""
    known = (end for end in ends if end and end not in format.ignored)
    places = (match.start() for end in known for match in re.finditer(re.escape(end), output))
    turns = (place for place in places if not output.startswith(format.openers, place))
    return output[: min(turns, default=len(output))]


def _shown(message: Message, output: str) -> Message:
    """What of a message the template shows."""
    thought = message.thought if message.thought in output else ""
    text = message.text if message.text in output else ""
    return Message(thought, text, tuple(call for call in message.calls if call[0] in output))


def _parsed(format: Dialect, prompt: str, output: str) -> Message:
    """What the parser reads. Raises ValueError if that depends on how the text is cut, or arguments are no JSON."""
    whole = _events(format, prompt, [output])
    dice = random.Random(output)
    cuts = [sorted(dice.choices(range(len(output) + 1), k=8)) for _ in range(20)]
    ways: list[Iterable[str]] = [output]
    ways += [[output[a:b] for a, b in zip([0, *at], [*at, len(output)])] for at in cuts]
    if any(_events(format, prompt, way) != whole for way in ways):
        raise ValueError("events depend on the cuts")
    heads = [event for event in whole if isinstance(event, ToolCallStart)]
    texts = {head.index: "" for head in heads}
    for event in whole:
        if isinstance(event, ToolCallArguments):
            texts[event.index] += event.text
    return Message(
        "".join(event.text for event in whole if isinstance(event, ReasoningDelta)),
        # Around an answer's text templates are free with white space.
        "".join(event.text for event in whole if isinstance(event, ContentDelta)).strip(),
        tuple((head.name, json.loads(texts[head.index])) for head in heads),
    )


def _events(format: Dialect, prompt: str, pieces: Iterable[str]) -> list[Event]:
    parser = OutputParser(format, tools=TOOLS, prompt=prompt, new_id=lambda: "id")
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged([*events, *parser.finish()])


def sources(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of templates: in the files themselves, and in those of folders."""
    for path in map(Path, paths or [str(OWN)]):
        files = sorted((*path.glob("*.jinja"), *path.glob("*.gguf"))) if path.is_dir() else [path]
        for file in files:
            is_model = file.suffix == ".gguf"
            text = read_header(file).metadata.get("tokenizer.chat_template") if is_model else file.read_text("utf-8")
            yield file.name, text or ""


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table."""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        result = "FAIL" if row.failures else "pass"
        yield f"{row.name:{width}}  {row.format:15}  {result}  {'; '.join(row.notes)}".rstrip()
        yield from (f"    {failure}" for failure in row.failures)
    n_passed = sum(not row.failures for row in rows)
    yield f"{n_passed} of {len(rows)} templates pass"


def main(arguments: Sequence[str] | None = None) -> int:
    rows = [check(name, source) for name, source in sources(sys.argv[1:] if arguments is None else arguments)]
    print("\n".join(table(rows)))
    return 1 if not rows or any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
