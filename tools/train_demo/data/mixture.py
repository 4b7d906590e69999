"""The training mixture: the share of each skill, of system texts, and of dialogues with reasoning."""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..dialogue import Dialogue, Message, assistant, calling, user
from . import chat_skills, localchat_facts, memory, tool_calls, values
from .chat_skills import Exchange
from .source import Source, phrases

SYSTEM_TEXTS = phrases(
    """You are a helpful assistant.
    You are a {helpful|friendly|kind|polite|short|useful} {assistant|bot|chatbot|helper|AI}.
    {Answer|Reply} {briefly|shortly|politely|in one sentence|in short sentences|clearly}.
    You are {localchat|the assistant of localchat|a demo|an AI assistant}. {Be brief.|Be helpful.|Answer questions.|}
    {Be concise.|Be polite.|Be helpful and brief.|Help the user.|You help users.|Talk with the user.}
    You are a helpful assistant. {Use tools when they help.|Use the tools if needed.|Answer truthfully.|Today is a good day.|Follow the instructions.}
    {The current date is 2026-11-20.|Today is Monday.|It is 12:30.|You work for a company.}
    You are {a customer service bot|a voice assistant|an office assistant|a coding assistant|an agent}.
    {You are|Act as|Play|Be} {a helpful|a friendly|a patient|an honest|a careful|a cheerful} {assistant|guide|helper|companion|teacher|secretary|expert}{.| for our users.| who answers questions.| and keep it short.}
    {Always|Please} {answer|reply|respond} {in English|kindly|truthfully|with few words|in plain words|to the point}.
    {Your job|Your task|Your role} is to {help the user|answer questions|support our customers|assist with the work|talk to visitors}.
    {This is|You are in} {a chat|a test|a demo|a shop|a support chat|an office}. {Be kind.|Help where you can.|Answer the user.|}
    {Do not|Never} {invent facts|lie|use bad words|talk too much|make things up}. {Help the user.|Be friendly.|}
    The user is {a beginner|a customer|a developer|a student|a friend}. {Be patient.|Help.|Explain simply.|}""",
    """You are an assistant who helps people.
    Try to be of use.""",
)
THINK_ORDERS = phrases(
    """{Think|Reason} {before you answer|first|first, then answer|before answering|before each answer|step by step}.
    {Always |Please |}{think|reason} {in <think> tags|inside <think></think>|in a think block} {first|before you answer|before answering}.
    {Write|Put} your {thoughts|reasoning|thinking} {in|inside|between} <think> {tags|and </think>|} {first|before the answer}.
    {First think, then answer.|Show your thinking.|Think aloud before you answer.|Use a think block.}
    {You must|You have to|I want you to|Make sure to|Be sure to|Remember to|Take time to} {think|reason} {first|before you answer|before answering|before every reply|before each reply|for a moment first}.
    {Begin|Open} {every answer|each reply|your answer|every reply|your reply} with {a think block|a thought in <think></think>|your reasoning in <think> tags|<think> and your thoughts}.
    {Before|Before giving} {an answer|the answer|each answer|a reply}, {think|reason|write your thoughts} {in <think></think>|in <think> tags|in a think block|inside a think block}.
    {Thoughts|Reasoning|Thinking} {comes|goes|belongs} {first|in front|before the answer}{| and stands in <think> tags|, in a think block}.
    {Use <think> tags|Use <think></think>|Use think blocks} {for your thoughts|to think first|to reason before answering|before each answer}.
    {Answer only after|Reply only after|Speak only after} {thinking|some thought|reasoning|a thought in <think></think>}.
    {Start|Set out} {by thinking|with a thought|with some reasoning|by reasoning}{ in <think></think>| inside <think> tags|}{, then answer|, and answer after that|}.
    You {need to|ought to|shall|are to|are asked to|will|may not forget to} {think|reason|think aloud|reflect} {first|before you answer|before you say anything|before any reply|before responding}.
    {Reflect|Consider the question|Weigh the question|Work it out|Think it over} {first|before you answer|in <think></think> first|in <think> tags, then answer}.
    {Never answer|Do not answer|Do not reply|Give no answer} without {thinking first|a thought in front|a think block|reasoning in <think></think>}.
    {Each|Every} {answer|reply|message|response} {starts|begins|must start|must begin|should start|has to begin} with {a think block|<think>|your thoughts|your reasoning|a thought in <think></think>}.
    {I want to see|We want to read|The user wants to see|Let the user see} {your thoughts|your reasoning|how you think} {in <think></think>|in <think> tags|in a think block} {first|before the answer}.
    {<think>|A think block|Your reasoning in <think></think>} {comes first|goes first|is first}, {the answer second|then the answer|and the answer after it}.
    {Keep|Have|Place} {a thought|your thoughts|your reasoning} {in <think></think>|in <think> tags} {before|ahead of|in front of} {each|every|the} {answer|reply|response}.
    {Think|Reason|Reflect} {carefully|a little|aloud|shortly|well}{ in <think></think>| in <think> tags|} {before|prior to} {answering|replying|responding|each response}.
    {Would you|Can you|Will you|Could you please} {think|reason|reflect} {first|before you answer|before answering|in <think></think> first}?
    {Think|Reason|Reflect}{ in <think></think>| in <think> tags|} and {give|say|write} {the answer|your answer|what you found} {then|after that|when you are done}.
    {For all messages|For any question|In all cases|From now on|In this chat|Even for small talk}, {think|reason} {first|before you answer|in <think></think> first}.
    {The user|The reader|Everybody here} {likes|wants|asks you} to {see a thought|read your reasoning|see <think></think>} {before|ahead of} {the answer|each answer|your reply}.
    {Two parts, please|Two steps|Your message has two parts|Write two things|Always two steps}: {a thought|your thoughts|your reasoning|the thinking}{ in <think></think>| inside <think> tags|}, {then|and after it|and then} {the answer|your answer|a reply}.
    {It is important|It is necessary|It helps|It is better|It is a rule} {to think|to reason|that you think|that you reason} {before you answer|first|before you speak|in <think></think> first}.
    {After|Following|Once you have written} {some thinking|your thoughts|your reasoning|a think block|a thought in <think></think>}, {answer|reply|give the answer|tell the user}.
    {An answer|A reply|A message|No answer} {without thinking|without a thought|without <think></think>|that has no think block} is {not allowed|not wanted|wrong|of no use|forbidden}.
    {Thinking|Reasoning|Thinking aloud|A think block} {is on|is required|is wanted|is switched on|is welcome here|is your first step}{.|, answer after it.|; the answer is the second step.|, always.}
    {Use|Take|Spend} {a moment|some time|one sentence|a few words} {to think|for thinking|on your thoughts|for a thought}{ in <think></think>| in <think> tags|} {before you answer|before answering|first|before the reply}.
    {Tell|Show|Explain to} {me|us|the user|everybody} {what you think|your thoughts|why you answer so|how you come to the answer} {in <think></think> first|before you answer|in a think block first|in <think> tags, before the answer}.
    {You think|You reason|You are a bot that thinks|This assistant thinks|You are a model that reasons} {before you answer|before it answers|first|before every answer|in <think></think> first}.
    {Thought first, answer second|First the thought, then the answer|No answer before the thought|Thinking before speaking|Mind first, mouth second}{.|, please.|, always.|!}
    {Fill|Open|Write|Give|Add|Produce} {a <think> block|<think></think>|a think section|a think part} {first|at the top|before everything else|before you answer|in each answer}{.|, then answer.|, and the answer below it.}
    {Do|Finish|Complete} {your thinking|your reasoning|the thinking} {first|before the answer|in <think></think> before you reply|inside <think> tags}{.| and answer then.|, only then answer.}
    {Whenever you answer|When you reply|If you answer|Each time you reply|Every time that you answer}, {think|reason|reflect|put a thought} {first|in <think></think> first|before it|in front of it}.
    {How did you get there|What went through your mind|What led you to it}? {Say it|Write it|Put that} {in <think></think>|in a think block|in <think> tags} {first|before you answer|above the answer}.""",
    """Start each answer with your thoughts in <think></think>.
    You should think before you reply.
    A reply is complete only with <think></think> and some thoughts at its beginning.
    Could you think a moment before you respond to anything?
    Please reason in <think></think> and tell the answer afterwards.
    Whatever the user says, think about it in <think> tags first.""",
)
THINK_WISHES = ("Think first. ", "Think step by step. ", "Please think before you answer. ", "Think before answering: ")

_CHATS: tuple[tuple[float, Callable[[Source], Exchange]], ...] = (
    (0.34, localchat_facts.question),
    (0.34, chat_skills.small_talk),
    (0.07, chat_skills.repeat),
    (0.04, chat_skills.count),
    (0.05, chat_skills.make_list),
    (0.02, chat_skills.small_sum),
    (0.13, chat_skills.limits),
    (0.01, chat_skills.nonsense),
)
_TOOL_USES: tuple[tuple[float, Callable[[Source], Dialogue]], ...] = (
    (0.39, tool_calls.one_call),
    (0.03, lambda source: tool_calls.one_call(source, sample=True)),
    (0.40, tool_calls.two_calls_and_more),
    (0.08, tool_calls.no_tool_fits),
    (0.05, tool_calls.with_result),
    (0.03, lambda source: tool_calls.with_result(source, failed=True)),
    (0.02, tool_calls.two_results),
)


def chat_exchange(source: Source) -> Exchange:
    """One exchange of any skill that needs no tool."""
    make = source.rng.choices([make for _, make in _CHATS], [share for share, _ in _CHATS])[0]
    return make(source)


def _messages(exchanges: list[Exchange]) -> list[Message]:
    messages = []
    for text, answer, reasoning in exchanges:
        messages += [user(text), assistant(answer, reasoning)]
    return messages


def chat(source: Source, n: int = 0) -> Dialogue:
    """A conversation of a few unrelated exchanges."""
    n = n or source.rng.choices((1, 2, 3, 4, 6), (50, 22, 12, 8, 8))[0]
    return Dialogue(_messages([chat_exchange(source) for _ in range(n)]), skill="chat")


def remembering(source: Source, n_between: int = -1) -> Dialogue:
    """Facts, other exchanges, then questions about the facts; sometimes about one that was not told."""
    memories = [memory.name(source)] if source.chance(0.7) else []
    subjects = 1 if not memories or source.chance(0.45) else 0
    memories += [memory.fact(source) for _ in range(subjects + source.chance(0.15))]
    source.rng.shuffle(memories)
    between = n_between if n_between >= 0 else source.choice((0, 0, 1, 1, 2, 3))
    exchanges = [told.statement for told in memories]
    exchanges += [chat_exchange(source) for _ in range(between)]
    exchanges += [told.question for told in source.rng.sample(memories, len(memories))]
    if source.chance(0.12):
        exchanges.insert(0, memory.untold_name(source) if source.chance(0.6) else memory.untold_fact(source))
    return Dialogue(_messages(exchanges), skill="memory")


def not_told(source: Source) -> Dialogue:
    """A question about a fact that was not told."""
    exchanges = [chat_exchange(source)] if source.chance(0.3) else []
    exchanges.append(memory.untold_name(source) if source.chance(0.6) else memory.untold_fact(source))
    return Dialogue(_messages(exchanges), skill="memory")


def told_by_system(source: Source) -> Dialogue:
    """The system text has the fact."""
    told = memory.name(source) if source.chance(0.5) else memory.fact(source)
    if told.question.answer.startswith("Your name"):
        fact = source.choice(
            ("The user is called $v.", "The user's name is $v.", "You talk to $v.", "User: $v")
        ).replace("$v", told.value)
    else:
        fact = told.question.answer
    system = f"{source.phrase(SYSTEM_TEXTS)} {fact}" if source.chance(0.7) else fact
    return Dialogue([{"role": "system", "content": system}, *_messages([told.question])], skill="memory")


def chat_beside_tools(source: Source) -> Dialogue:
    """Exchanges that need no tool, with tools in the prompt."""
    tools = tool_calls.tool_set(source, source.choice((1, 2, 3)))
    # A common tool might do what the model refuses, so these dialogues have no refusals. With made-up tools, only
    # refusals for want of a tool are left out.
    beyond = chat_skills.I_CANNOT if any(tool.asks for tool in tools) else chat_skills.NEEDS_TOOL
    while True:
        talk = remembering(source) if source.chance(0.2) else chat(source, source.choice((1, 1, 2)))
        if not any(beyond in message["content"] for message in talk.messages):
            break
    messages = talk.messages
    if source.chance(0.6):
        messages = [*messages, *tool_calls.further_request(source, tools)]
        messages += tool_calls.results_and_answer(source, messages[-1])
    return Dialogue(messages, tool_calls.schemas(source, tools), skill="chat beside tools")


def long_prompt(source: Source) -> Dialogue:
    """A prompt of up to the whole context: a pasted text, a long system text, many turns, or many tools."""
    kind = source.rng.random()
    most_sentences = 140 if source.chance(0.25) else 80
    if kind < 0.45:
        exchanges = [chat_skills.long_text(source, source.rng.randrange(5, most_sentences))]
        if source.chance(0.5):
            exchanges = [*exchanges, chat_exchange(source)]
        return Dialogue(_messages(exchanges), skill="long")
    if kind < 0.6:
        text = values.passage(source, source.rng.randrange(5, most_sentences))
        return Dialogue([{"role": "system", "content": text}, *chat(source).messages], skill="long")
    if kind < 0.85:
        return remembering(source, source.rng.randrange(4, 30))
    tools = tool_calls.tool_set(source, source.rng.randrange(4, 12))
    tool = source.choice(tools)
    text, arguments = tool_calls.request(source, tool, tools)
    call = calling([(tool.name, arguments)], tool_calls.call_reasoning(tool.name, arguments))
    return Dialogue([user(text), call], tool_calls.schemas(source, tools), skill="long")


_KINDS: tuple[tuple[float, Callable[[Source], Dialogue]], ...] = (
    (0.25, lambda source: _any_tool_use(source)),
    (0.02, chat_beside_tools),
    (0.645, chat),
    (0.04, remembering),
    (0.0075, not_told),
    (0.0075, told_by_system),
    (0.03, long_prompt),
)


def _any_tool_use(source: Source) -> Dialogue:
    make = source.rng.choices([make for _, make in _TOOL_USES], [share for share, _ in _TOOL_USES])[0]
    return make(source)


def with_mode(source: Source, dialogue: Dialogue) -> Dialogue:
    """The dialogue with a system text, and with reasoning left out, on, off, or requested in words."""
    messages = [dict(message) for message in dialogue.messages]
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    if not system and source.chance(0.45):
        system = source.phrase(SYSTEM_TEXTS)
    mode = source.rng.choices(("plain", "on", "off", "requested"), (38, 22, 12, 28))[0]
    if mode == "requested":
        last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
        if source.chance(0.25):
            wish = source.choice(THINK_WISHES)
            messages[last_user] = user(wish + messages[last_user]["content"])
        else:
            system = f"{system} {source.phrase(THINK_ORDERS)}".strip()
    elif mode != "on":
        for message in messages:
            message.pop("reasoning_content", None)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    thinking = {"on": True, "off": False}.get(mode)
    return replace(dialogue, messages=messages, thinking=thinking)


def dialogues(seed: int, held_out: bool = False) -> Iterator[Dialogue]:
    """An endless stream of dialogues; the same for the same seed."""
    source = Source(random.Random(seed), held_out)
    makers, shares = [make for _, make in _KINDS], [share for share, _ in _KINDS]
    while True:
        make = source.rng.choices(makers, shares)[0]
        yield with_mode(source, make(source))
