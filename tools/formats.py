"""`python -m tools.formats [FILES or FOLDERS]`: test whether chat templates and output parsers agree.

The program renders assistant messages with reasoning, text and calls through each template (a .jinja file, or the
template in a .gguf file), cuts out the part that the model would have generated, and parses this part, cut into pieces
at random. The parser must return the message that was rendered. The program prints a table; its exit status is 1 if a
template fails. Without an argument it tests the project's own templates, which cover every family.
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

from localchat.serving.chat.dialects import Dialect
from localchat.serving.chat.dialects.channels import ChannelDialect
from localchat.serving.chat.dialects.parser import ParserEvent, merged
from localchat.serving.chat.prompt.control_tokens import without_markers
from localchat.serving.chat.prompt.jinja import TemplateError
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from localchat.serving.models.gguf import read_header

OWN = Path(__file__).parents[1] / "tests" / "data" / "templates"

BOS, EOS = "<s>", "</s>"
# End-of-generation tokens that `_turn_end` cannot find, since a turn of text alone does not end with them. The engine
# removes such tokens, so parsers never see them.
ENDS = (
    "<|call|>",
    "<|calls|>",
    "<|eom_id|>",
    "[e~[",
    "<SPECIAL_12>",
    "<\uff5chy_eos:opensource\uff5c>",
    "<|tool_response>",
    "<|END_OF_TURN_TOKEN|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)

Tools = Sequence[Mapping[str, Any]]

REASONING = "The forecast is needed.\nAnd the time?"
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
# Template variables that turn reasoning on or off, by the names that templates use.
SWITCHES: tuple[Mapping[str, Any], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking_mode": "enabled"},
)


@dataclass(frozen=True)
class Message:
    """An assistant message: the input of a template, and the result of a parser."""

    reasoning: str = ""
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
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.text, **reasoning, **({"tool_calls": calls} if calls else {})}


MESSAGES = {
    "reasoning, text and calls": Message(REASONING, TEXT, CALLS),
    "reasoning and a call": Message(REASONING, "", CALLS[:1]),
    "a call": Message("", "", CALLS[:1]),
    "calls": Message("", "", CALLS),
    "text and a call": Message("", TEXT, CALLS[:1]),
    "reasoning and text": Message(REASONING, TEXT),
    "text": Message("", TEXT),
}


@dataclass(frozen=True)
class Row:
    """The line of one template in the table."""

    name: str
    format: str
    failures: tuple[str, ...] = ()
    # What the template refuses to render, or leaves out.
    notes: tuple[str, ...] = ()


def check(name: str, source: str) -> Row:
    """Render and parse every message of `MESSAGES`."""
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
        for part in ("reasoning", "text", "calls"):
            if getattr(expected, part) != getattr(message, part):
                notes.setdefault(f"does not show the {part} of", []).append(what)
        if expected.text and found.reasoning.strip() == expected.text:
            # gpt-oss renders text beside calls as reasoning, Nemotron Nano the text of the last message.
            notes.setdefault("shows the text as reasoning of", []).append(what)
            expected = replace(expected, reasoning=found.reasoning, text="")
        shows_calls = shows_calls or bool(expected.calls)
        if found != expected:
            failures.append(f"{what}: {output!r} after {prompt[-40:]!r} was parsed as {found}")
    if not shows_calls:
        failures.append("shows no calls")
    joined = (f"{note} {', '.join(of) if len(of) < len(MESSAGES) else 'anything'}" for note, of in notes.items())
    return Row(name, template.dialect.name, tuple(failures), tuple(joined))


def generated(template: ChatTemplate, message: Message) -> tuple[str, str]:
    """The prompt and the output of the model, cut out of the rendered message.

    The prompt ends early if the template renders the end of a prompt in another way than the same place in a history.
    Of all `SWITCHES`, those are taken with which the output has the reasoning and the history contains the prompt.
    """
    found: list[tuple[bool, bool, int, str, str]] = []
    for number, switches in enumerate(SWITCHES):
        if any(name not in template.source for name in switches):
            continue  # The template renders the same without it.
        prompt = _rendered(template, switches)
        whole = _rendered(template, switches, message)
        start = _common_start(prompt, whole)
        end = _turn_end(whole, _rendered(template, switches, Message(text=TEXT + "?")))
        output = _first_turn(whole[start:], (end, *ENDS), template.dialect)
        # A history may leave out the reasoning start tag with which the prompt ends.
        is_open = prompt[start:].strip() == template.dialect.reasoning.start and output.startswith(message.reasoning)
        is_whole = start == len(prompt) or (is_open and bool(message.reasoning))
        found.append((message.reasoning in output, is_whole, -number, prompt if is_whole else whole[:start], output))
    return max(found)[-2:]


def _rendered(template: ChatTemplate, switches: Mapping[str, Any], *messages: Message) -> str:
    history = [QUESTION, *(message.as_json() for message in messages)]
    prompt = template.render(history, tools=TOOLS, add_generation_prompt=not messages, variables=switches)
    return without_markers(prompt)


def _common_start(prompt: str, whole: str) -> int:
    """The length of the part that the prompt and the whole text have in common; it does not end within a marker."""
    n = next((n for n, (a, b) in enumerate(zip(prompt, whole)) if a != b), min(len(prompt), len(whole)))
    if n == len(prompt):
        return n
    opened = prompt.rfind("<", 0, n)
    n = opened if opened > prompt.rfind(">", 0, n) else n
    # Some templates put instructions before the last header of a prompt. The history has the header without them.
    return n + next((size for size in range(len(whole) - n, 0, -1) if prompt.endswith(whole[n : n + size])), 0)


def _turn_end(*texts: str) -> str:
    """The common end of all texts, from its first marker on."""
    pairs = zip(*(reversed(text) for text in texts))
    n = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    start = texts[0].find("<", len(texts[0]) - n)
    return texts[0][start:].rstrip() if start >= 0 else ""


def _first_turn(output: str, ends: Sequence[str], format: Dialect) -> str:
    """The output up to the first end of a turn: some templates render text and calls as two turns.

    A marker that the parser reads does not end the turn, unless it ends a message.
    """
    read = () if isinstance(format, ChannelDialect) else format.dropped
    known = (end for end in ends if end and end not in read)
    places = (match.start() for end in known for match in re.finditer(re.escape(end), output))
    turns = (place for place in places if not output.startswith(format.openers, place))
    return output[: min(turns, default=len(output))]


def _shown(message: Message, output: str) -> Message:
    """The parts of a message that the output has."""
    reasoning = message.reasoning if message.reasoning in output else ""
    text = message.text if message.text in output else ""
    return Message(reasoning, text, tuple(call for call in message.calls if call[0] in output))


def _parsed(format: Dialect, prompt: str, output: str) -> Message:
    """The message that the parser reads in the output.

    Raises:
        ValueError: The result depends on how the output is cut, or the arguments of a call are not JSON.
    """
    whole = _events(format, prompt, [output])
    rng = random.Random(output)
    cuts = [sorted(rng.choices(range(len(output) + 1), k=8)) for _ in range(20)]
    in_pieces: list[Iterable[str]] = [output]  # A text is a list of its characters.
    in_pieces += [[output[a:b] for a, b in zip([0, *at], [*at, len(output)])] for at in cuts]
    if any(_events(format, prompt, pieces) != whole for pieces in in_pieces):
        raise ValueError("events depend on the cuts")
    heads = [event for event in whole if isinstance(event, ToolCallStart)]
    texts = {head.index: "" for head in heads}
    for event in whole:
        if isinstance(event, ToolCallArguments):
            texts[event.index] += event.text
    return Message(
        "".join(event.text for event in whole if isinstance(event, ReasoningDelta)),
        # Templates add white space around the text.
        "".join(event.text for event in whole if isinstance(event, ContentDelta)).strip(),
        tuple((head.name, json.loads(texts[head.index])) for head in heads),
    )


def _events(format: Dialect, prompt: str, pieces: Iterable[str]) -> list[ParserEvent]:
    parser = format.parser(format, tools=TOOLS, prompt_end=format.prompt_end(prompt), new_id=lambda: "id")
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged([*events, *parser.finish()])


def sources(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each template, in files and in the files of folders."""
    for path in map(Path, paths or [str(OWN)]):
        files = sorted((*path.glob("*.jinja"), *path.glob("*.gguf"))) if path.is_dir() else [path]
        for file in files:
            is_model = file.suffix == ".gguf"
            text = read_header(file).get("tokenizer.chat_template") if is_model else file.read_text("utf-8")
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
