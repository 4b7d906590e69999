"""Dialogues with tools: choosing, copying arguments, two calls, no fitting tool, results, errors."""

# ruff: noqa: E501, SIM905  (phrasings and word lists are data, one per line)

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ..dialogue import Dialogue, Message, assistant, calling, tool_result, user
from . import values
from .common_tools import common_tool
from .sample_tools import SAMPLE_TOOLS
from .source import Pool, Source, phrases
from .tool_schemas import QUESTION_VERBS, Param, ToolSpec, Value, random_tool, schema, spoken

Call = tuple[str, dict[str, Any]]

REQUESTS = phrases(
    """{Please |Please |Could you |Can you |Now |Hey, |I want you to |}$verb {the|a|my|this|one} $noun$cues{.|.|!|?||, please.|, please| right away.|, if you can.}
    {I need to|I want to|I would like to|We have to|Let us|I have to} $verb {the|a|my|our} $noun$cues{.||, please.|, thank you.| as soon as possible.|, ok?}
    {$verb|please $verb} $noun$cues
    {Could|Can|Would|Will} you {please |}$verb {the|a|my|our} $noun$cues?
    {Help me|Help me to|Go and|Use a tool to} $verb {the|a|my} $noun$cues{.||, please.|, thank you.| as soon as possible.|, ok?}
    {It is time to|Do not forget to|You should} $verb {the|a|my} $noun$cues{.||, please.|, thank you.| as soon as possible.|, ok?}
    {Hi|Hello|Good morning|Hey there}{,|!} {please |can you |}$verb {the|a|my} $noun$cues{.|?|}
    {I'd like you to|You can now|Next,} $verb {the|a|this|our} $noun$cues{.||, please.|, thank you.| as soon as possible.|, ok?}
    {My|Our|The} {sister|chef|neighbour|team|manager|friend|$word} {asks you to|told me to|needs you to|would like you to|says we must|tries to|begs you to} $verb {the|a|my|our|one} $noun$cues{.||, please.|!}
    {Somebody|Everybody|Nobody else|One of us|Who else} {must|should|needs to|could|can|would} $verb {the|a|my|our} $noun$cues{.|?||, please.}
    {Is it possible|Are you able|Are you ready|Be kind enough|Feel free|Try|Take a moment|You are welcome|Be a dear} to $verb {the|a|my|our} $noun$cues{.|?|}
    {First|Now|Then|Finally|Slowly|Again|Just|Simply|Carefully|At once|$word,} $verb {the|a|my|this} $noun$cues{.|!||, please.|, if you like.}
    {Do|Start to|Move on and|Continue and|Hurry up and|Come on and|Sit down and} $verb {the|a|my} $noun$cues{.|!|}
    {Would it be possible to|Be so kind to|Kindly} $verb {the|a|my} $noun$cues{.|?|}
    {My boss wants you to|Someone has to} $verb {the|our} $noun$cues{.|}
    {Go ahead and|Quickly} $verb {the|a} $noun$cues, {please|thanks}{.|}
    {Please |You may |Now |}$verb {the|a|my|our} $noun$cues{, and do it now|, so go ahead|, before I forget|, because I need it|, it is urgent|, and that is all|, then we are done|, and be quick|, so that I can go on|, as we said|, and nothing else}{.|!|}
    {I have to|We must|I want to|Someone should|You might|They asked me to} $verb {the|a|my} $noun$cues{, so get it done|, so take care of it|, and you can do it for me|, will you help|, which is why I ask|, do it for me|, and so you should}{.|?|}
    {I need some help.|I have a task for you.|Are you ready?|There is something to do.|May I ask you something?|Do you have a minute?|Listen.|Could you give me a hand?|Another thing.|Can I bother you?} {We have to|I must|Please|I'd like to|You can|I want to|I am supposed to} $verb {the|a|my} $noun$cues{.|?||!}""",
    """Please go and $verb the $noun$cues.
    I need you to $verb the $noun$cues.
    We would like to $verb the $noun$cues.
    Would you mind helping me? I have to $verb the $noun$cues.
    Let's $verb the $noun$cues.
    Can you quickly $verb the $noun$cues?
    I'd be glad if you could $verb the $noun$cues.
    Somebody ought to $verb the $noun$cues, so do that.""",
)
QUESTIONS = phrases(
    """{What is|What's|Tell me|Show me|Give me|Where is|I need|How is} {the|my} $noun$cues{?|.|}
    {Do you know|Can you tell me|I want to know} {the|my} $noun$cues{?|.|}
    {Let me see|I am looking for|Look for|Look up} {the|a|my} $noun$cues{.|}
    {How about|Anything new about|Is there something on|I wonder about|Who knows|Remind me of|I wait for|Say something about} {the|my|our} $noun$cues{?|.|}
    {What about|Any news of|I am curious about} the $noun$cues{?|.|}""",
    """What is the current state of the $noun$cues?
    What do we know about the $noun$cues?
    I'm curious about the $noun$cues.
    Any details on the $noun$cues?
    Which $noun is there$cues?
    May I have a look at the $noun$cues?
    I need information on the $noun$cues.
    What can you tell me about the $noun$cues?""",
)
# Short requests are the hardest ones: the verb at the beginning has other tokens than in the name of the tool.
_PLAIN = phrases("{$verb|$verb|$verb|Please $verb} {the|the|a|my|our|this|} $noun$cues{.|.|.||, please.|!|?}")
# Verbs with the same meaning for most nouns.
_ALIKE = [
    line.split()
    for line in """create open make file start add new register record
    find search lookup get show list fetch check read display
    delete remove erase drop discard
    send post share submit forward
    book reserve order rent
    update change set edit
    stop end pause close halt
    cancel revoke undo
    track trace follow watch""".split("\n")
]
# Requests that name only the verb or only the noun, for tools that share it with no other. These are only trained; test
# cases name both.
_BY_VERB = phrases(
    """{Please |Please, |Can you |Could you |Now |Hey, |I want to |I need to |Let us |}$verb$cues{.|.|!|?||, please.}
    {Just |}$verb {it|this|that|one|something}$cues{.|.||, please.}"""
)
_BY_NOUN = phrases(
    """{I need|I want|I would like|I'd like|Give me|Get me|We need|Now|Next,|Also|Please,} {a|the|my|one|another} $noun$cues{.|.|!||, please.}
    {The|A|My|Our|One more|} $noun$cues{.|, please.|, please|, thanks.|?|}
    {Can I have|Could I have|Is there|Can I get|May I have} {a|the|my} $noun$cues?"""
)
REFUSALS = (
    "None of my tools can do that.",
    "Sorry, I have no tool for that.",
)
_ERRORS = (
    "not found",
    "permission denied",
    "timeout",
    "service unavailable",
    "invalid request",
    "out of stock",
    "no connection",
    "limit reached",
    "unknown user",
    "access denied",
    "internal error",
    "wrong format",
)


_BEFORE_A_NAME = "on,in,to,at,of,for,from,by,under,near,on the,in the,to the,for the".split(",")


_BLANK = re.compile(r"\$(\w+)")


def _cue(source: Source, param: Param, value: Value, used: set[str], may_be_bare: bool, last: bool) -> str:
    """The words that mention one value; a request uses each preposition once."""
    text = spoken_result(value)
    free = [word for word in param.prepositions if word.split()[0] not in used]
    # Text without quotes must come last and have no final mark, else its end would be unclear.
    if param.kind in ("text", "query", "say") and (not last or text[-1] in ".!?" or source.chance(0.6)):
        quote = source.choice(('"', '"', "'"))
        text = f"{quote}{text}{quote}"
    if free and source.chance(0.6):
        word = source.choice(free)
        used.add(word.split()[0])
        return f" {word} {text}"
    if may_be_bare and source.chance(0.4):
        used.add("number")
        return f" {text}"
    if param.is_counted and source.chance(0.6):
        return f"{source.choice((' for', ' of', ',', ':', ''))} {text} {param.words}"
    if param.options and source.chance(0.3 if source.held_out else 0.65):
        # An option needs no name, since it belongs to only one parameter.
        return source.choice((f" {text}", f" ({text})", f", {text}", f" in {text}", f" as {text}"))
    name = param.words
    if not source.held_out and source.chance(0.25):
        # Such as: on floor 3, to quality 60, under article 318.
        return f" {source.choice(_BEFORE_A_NAME)} {name} {text}"
    forms = (
        f" with {name} {text}",
        f" with the {name} {text}",
        f", {name} {text}",
        f", {name}: {text}",
        f" ({name}: {text})",
        f" with {name} = {text}",
        f" and set the {name} to {text}",
        f" using {name} {text}",
        f", the {name} is {text}",
    )
    return source.choice(forms)


def _values(source: Source, tool: ToolSpec) -> dict[str, Value]:
    """Arguments in the order of the request; optional ones are sometimes left out.

    The call has the same order, so that the model reads the request only once. Text comes last, where it needs no
    quotes.
    """
    given = [param for param in tool.params if param.required or source.chance(0.55)]
    if source.chance(0.3):
        source.rng.shuffle(given)
    given.sort(key=lambda param: param.kind in ("text", "query", "say"))
    return {param.name: param.value(source) for param in given}


def request(source: Source, tool: ToolSpec, among: Sequence[ToolSpec] = ()) -> tuple[str, dict[str, Value]]:
    """A user's request for one tool `among` others, and the arguments that it gives."""
    if tool.asks:
        return _sample_request(source, tool)
    arguments = _values(source, tool)
    verb, others = tool.verb, [other for other in among if other.name != tool.name]
    if not source.held_out and source.chance(0.3) and all(other.noun != tool.noun for other in others):
        # The request may use another verb of the same meaning; the call has the name of the tool.
        verb = source.choice(next((group for group in _ALIKE if verb in group), [verb]))
    patterns = _patterns(source, tool, verb, others)
    text = source.phrase(patterns, verb=verb, noun=tool.noun, word=values.common_word(source))
    text = text.replace("$cues", _cues(source, tool, arguments))
    if source.chance(0.7):
        text = text[0].upper() + text[1:]
    return text, arguments


def _patterns(source: Source, tool: ToolSpec, used_verb: str, others: Sequence[ToolSpec]) -> Pool:
    # Sample tools and common tools have several names, so two tools might share a word.
    if not source.held_out and source.chance(0.2) and not any(other.asks for other in others):
        if source.chance(0.35) and all(other.verb not in (tool.verb, used_verb) for other in others):
            return _BY_VERB
        if all(other.noun != tool.noun for other in others):
            return _BY_NOUN
    if not source.held_out and source.chance(0.4):
        return _PLAIN
    return QUESTIONS if tool.verb in QUESTION_VERBS and source.chance(0.4) else REQUESTS


def _cues(source: Source, tool: ToolSpec, arguments: dict[str, Value]) -> str:
    """The words that mention all values, in order."""
    params = {param.name: param for param in tool.params}
    used: set[str] = set()
    last = len(arguments) - 1
    return "".join(
        _cue(source, params[name], value, used, i == 0 and _may_be_bare(params[name], tool), i == last)
        for i, (name, value) in enumerate(arguments.items())
    )


def _may_be_bare(param: Param, tool: ToolSpec) -> bool:
    """Whether a value may follow the noun without words: its parameter is an obvious one, or the only one."""
    similar = [other for other in tool.params if other.kind in ("code", "file")]
    return similar == [param] and (param.telling or len(tool.params) == 1)


def _sample_request(source: Source, tool: ToolSpec) -> tuple[str, dict[str, Value]]:
    if not source.held_out and source.chance(0.2):
        # The request has the words of the tool's name.
        arguments = _values(source, tool)
        verb, _, noun = spoken(tool.name).partition(" ")
        opening = verb.capitalize() + (source.choice((" a ", " the ", " my ", " ")) + noun if noun else "")
        return opening + _cues(source, tool, arguments) + source.choice((".", ", please.", "?", "")), arguments
    text = source.expand(source.choice(tool.asks))
    params = {param.name: param for param in tool.params}
    arguments = {name: params[name].value(source) for name in dict.fromkeys(_BLANK.findall(text))}
    person = next((name for name in arguments if params[name].kind == "full_name"), None)
    address = next((name for name in arguments if params[name].kind == "email"), None)
    if person and address and source.chance(0.6):
        # An address like the name teaches the model not to confuse them.
        arguments[address] = values.email_of(source, str(arguments[person]))
    text = _BLANK.sub(lambda blank: spoken_result(arguments[blank[1]]), text)
    if source.chance(0.15):
        text = source.choice(("Hi! ", "Please: ", "Hello, ", "One question: ")) + text
    return text, arguments


def _new_tool(source: Source, like: Sequence[ToolSpec] = ()) -> ToolSpec:
    """A tool; sometimes one that resembles a tool of `like`."""
    if not source.held_out and source.chance(0.35):
        return common_tool(source) if source.chance(0.8) else source.choice(SAMPLE_TOOLS)
    # Sample tools and common tools have several words for one thing, so no tool can share exactly one word with them.
    made_up = [tool for tool in like if not tool.asks]
    if made_up and source.chance(0.3 if source.held_out else 0.5):
        other = source.choice(made_up)
        if source.chance(0.5):
            return random_tool(source, verb=other.verb)
        return random_tool(source, noun=other.noun)
    return random_tool(source)


def tool_set(source: Source, n: int) -> list[ToolSpec]:
    """Tools that a request can tell apart: no two share both verb and noun."""
    tools: list[ToolSpec] = []
    while len(tools) < n:
        tool = _new_tool(source, tools)
        if all(tool.name != other.name and (tool.verb, tool.noun) != (other.verb, other.noun) for other in tools):
            tools.append(tool)
    source.rng.shuffle(tools)
    return tools


def _count(source: Source) -> int:
    return source.rng.choices((1, 2, 3, 4, 5), (40, 29, 22, 6, 3))[0]


def call_reasoning(name: str, arguments: dict[str, Value]) -> str:
    """The reasoning of the model before a call."""
    reasoning = f"The tool {name} fits."
    for parameter, value in arguments.items():
        reasoning += f" {parameter} is {json.dumps(value, ensure_ascii=False)}."
    return reasoning


def schemas(source: Source, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The schemas of the tools, each of a random size."""
    return [schema(source, tool) for tool in tools]


def one_call(source: Source, n_tools: int = 0, sample: bool = False) -> Dialogue:
    """A request for one of the tools, often followed by the result and by further requests."""
    tools = tool_set(source, n_tools or _count(source))
    if sample:
        wanted = source.choice(SAMPLE_TOOLS)
        tools[source.rng.randrange(len(tools))] = wanted
        # If several tools have its name, only the wanted one stays.
        tools = list({tool.name: tool for tool in (*tools, wanted)}.values())
        first = source.choice([tool for tool in tools if tool.asks])
    else:
        first = source.choice(tools)
    messages = _request_and_call(source, [first], tools)
    # Most tokens of a dialogue describe the tools, so further requests for them cost little.
    for _ in range(source.choice((0, 1, 2, 3, 4))):
        if source.chance(0.4):
            messages += results_and_answer(source, messages[-1])
        messages += further_request(source, tools)
    if source.chance(0.4):
        messages += results_and_answer(source, messages[-1])
    return Dialogue(messages, schemas(source, tools), skill=f"{len(tools)} tools")


_JOINTS = (" And ", " Also ", " Then ", " After that ", " ", "\n")
_JOINTS_IN_A_SENTENCE = (" and ", ", and ", " and then ", ", then ", " and also ")


def _request_and_call(source: Source, chosen: Sequence[ToolSpec], among: Sequence[ToolSpec]) -> list[Message]:
    """One message with a request for each of the chosen tools, and the message with the calls."""
    joint = source.choice(_JOINTS)
    text, calls, reasonings = "", [], []
    for tool in chosen:
        part, arguments = request(source, tool, among)
        if text:
            if source.chance(0.25) and not _is_open_ended(text, calls[-1][1]):
                text, joint = text.rstrip(".?!"), source.choice(_JOINTS_IN_A_SENTENCE)
            else:
                text += "" if text[-1] in ".?!" else "."
            text += joint + (part if joint in (" ", "\n") else _without_capital(part, arguments))
        else:
            text = part
        calls.append((tool.name, arguments))
        reasonings.append(call_reasoning(tool.name, arguments))
    return [user(text), calling(calls, "\n".join(reasonings))]


def _without_capital(text: str, arguments: dict[str, Value]) -> str:
    """The text with a small first letter, for the middle of a sentence, unless it begins with "I" or a value."""
    if text.startswith(("I ", "I'", *(value for value in arguments.values() if isinstance(value, str)))):
        return text
    return text[0].lower() + text[1:]


def _is_open_ended(text: str, arguments: dict[str, Value]) -> bool:
    """Whether the end of a value without quotes is the end of the request, so that nothing can follow."""
    return any(
        text.rstrip(".?!").endswith(value.rstrip(".?!")) and (" " in value or value[-1] in ".?!")
        for value in arguments.values()
        if isinstance(value, str)
    )


def further_request(source: Source, tools: Sequence[ToolSpec]) -> list[Message]:
    """Another request with the same tools: for one of them, for two, or for none."""
    kind = source.rng.random()
    if kind < 0.15:
        return _request_and_refusal(source, tools)
    if kind < 0.35 and len(tools) > 1:
        return _request_and_call(source, source.rng.sample(tools, 2), tools)
    return _request_and_call(source, [source.choice(tools)], tools)


def _for_two_calls(source: Source) -> tuple[list[ToolSpec], list[Message]]:
    """Tools, a request that needs two calls of one or of two of them, and the calls."""
    tools = tool_set(source, source.choice((1, 2, 2, 3)))
    if len(tools) == 1 or source.chance(0.3):
        tool = source.choice(tools)
        while not tool.params:
            tool = random_tool(source)
            tools = [tool]
        chosen = [tool, tool]
    else:
        chosen = source.rng.sample(tools, 2)
    return tools, _request_and_call(source, chosen, tools)


def two_calls(source: Source) -> Dialogue:
    """A request that needs two calls."""
    tools, messages = _for_two_calls(source)
    return Dialogue(messages, schemas(source, tools), skill="two calls")


def two_calls_and_more(source: Source) -> Dialogue:
    """A request that needs two calls, often followed by further requests, which cost few tokens."""
    tools, messages = _for_two_calls(source)
    for _ in range(source.choice((0, 1, 2, 3))):
        if source.chance(0.4):
            messages += results_and_answer(source, messages[-1])
        if len(tools) > 1 and source.chance(0.6):
            messages += _request_and_call(source, source.rng.sample(tools, 2), tools)
        else:
            messages += further_request(source, tools)
    return Dialogue(messages, schemas(source, tools), skill="two calls")


def _request_and_refusal(source: Source, tools: Sequence[ToolSpec]) -> list[Message]:
    """A request for something that none of the tools does."""
    while True:
        wanted = _new_tool(source)
        if all(wanted.noun != tool.noun and wanted.name != tool.name for tool in tools):
            break
    text, _ = request(source, wanted)
    return [user(text), assistant(source.choice(REFUSALS), "None of the tools fits this.")]


def no_tool_fits(source: Source) -> Dialogue:
    """A request for something that no offered tool does."""
    tools = tool_set(source, _count(source))
    messages = _request_and_refusal(source, tools)
    for _ in range(source.choice((0, 1, 2))):
        messages += further_request(source, tools)
        messages += results_and_answer(source, messages[-1])
    return Dialogue(messages, schemas(source, tools), skill="no tool")


_RESULT_KEYS = (
    "temperature status price total name city time date count result value state message wind humidity "
    "condition distance duration rating balance eta location size owner level weight title available id"
).split()


def _result_value(source: Source) -> Any:
    kind = source.rng.random()
    if kind < 0.3:
        return values.integer(source)
    if kind < 0.45:
        return values.decimal(source)
    if kind < 0.5:
        return source.chance(0.5)
    return values.any_text(source) if kind < 0.7 else values.phrase(source, 3)


def spoken_result(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def result(source: Source) -> tuple[str, str, str]:
    """The output of a tool, the answer made of it, and the reasoning before the answer."""
    reasoning = "The tool gave a result. I tell it to the user."
    kind = source.rng.random()
    if kind < 0.52:
        n = source.choice((1, 1, 2, 2, 3))
        keys = source.rng.sample(_RESULT_KEYS, n)
        if source.held_out or source.chance(0.4):
            keys = list(dict.fromkeys(values.word(source) if source.chance(0.5) else key for key in keys))
        data = {key: _result_value(source) for key in keys}
        answer = "The " + _join([f"{key.replace('_', ' ')} is {spoken_result(data[key])}" for key in keys]) + "."
        return json.dumps(data, ensure_ascii=False), answer, reasoning
    if kind < 0.72:
        text = values.phrase(source, 6) if source.chance(0.7) else spoken_result(_result_value(source))
        return text, f"The result is: {text}", reasoning
    if kind < 0.80:
        items = [
            values.phrase(source, 2) if source.chance(0.5) else values.word(source)
            for _ in range(source.choice((1, 2, 3)))
        ]
        return json.dumps(items, ensure_ascii=False), "I found " + _join(items) + ".", reasoning
    if kind < 0.86:
        empty = source.choice(("[]", "{}", "null", ""))
        return empty, "The tool gave no result.", "The result is empty. I say so."
    done = source.choice(
        ('{"ok": true}', '{"success": true}', "ok", "done", "OK", '{"status": "ok"}', '{"status": "done"}')
    )
    return done, "It is done.", "It worked. I say so."


def error(source: Source) -> tuple[str, str, str]:
    """The error of a tool, the answer that reports it, and the reasoning before the answer."""
    problem = source.choice(_ERRORS) if source.chance(0.4) and not source.held_out else values.phrase(source, 5)
    if source.chance(0.2):
        problem = f"{values.word(source)} {source.choice(_ERRORS)}"
    forms = (
        json.dumps({"error": problem}),
        json.dumps({"status": "error", "message": problem}),
        json.dumps({"ok": False, "error": problem}),
        f"Error: {problem}",
        f"error: {problem}",
        json.dumps({"error": {"message": problem}}),
    )
    return source.choice(forms), f"That did not work: {problem}.", "The tool reports an error. I tell the user."


def results_and_answer(source: Source, calling_message: Message, failed: bool = False) -> list[Message]:
    """The messages after the assistant message `calling_message`: an output for each call, and one answer about them."""
    n = len(calling_message.get("tool_calls", ()))
    if n == 0:
        return []
    goes_wrong = n == 1 and (failed or source.chance(0.2))
    outcomes = [error(source)] if goes_wrong else [result(source) for _ in range(n)]
    answer = " ".join(answer for _, answer, _ in outcomes)
    return [*(tool_result(output) for output, _, _ in outcomes), assistant(answer, outcomes[0][2])]


def with_result(source: Source, failed: bool = False) -> Dialogue:
    """A call with its result, and sometimes a second request after it."""
    tools = tool_set(source, source.choice((1, 1, 2)))
    messages = _request_and_call(source, [source.choice(tools)], tools)
    messages += results_and_answer(source, messages[-1], failed)
    if not failed and source.chance(0.25):
        messages += _request_and_call(source, [source.choice(tools)], tools)
        messages += results_and_answer(source, messages[-1])
    return Dialogue(messages, schemas(source, tools), skill="error" if failed else "result")


def two_results(source: Source) -> Dialogue:
    """Two calls in one answer and both results in the next turn."""
    dialogue = two_calls(source)
    messages = [*dialogue.messages, *results_and_answer(source, dialogue.messages[-1])]
    return Dialogue(messages, dialogue.tools, skill="two results")
