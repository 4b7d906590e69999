"""Questions about localchat and about the model itself, with true answers.

The answers must stay true of the README; a test compares ports, flags and paths.
"""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

from typing import NamedTuple

from . import chat_skills
from .chat_skills import Exchange
from .source import Phrasings, Source, headed, phrases, written


class Topic(NamedTuple):
    """One question: its subject in a few words, the ways to ask it, its answer."""

    subject: str
    phrasings: Phrasings
    answer: str


# Frames around the wishes and the things of every topic. Since all topics share them, they teach which words matter.
_WISH_FRAMES = (
    "{I want to|I need to|I would like to|I'd like to|I have to|I try to|I plan to|We want to|We need to} {$wish}{, how|. How|, what do I do|, what now|. What must I do|, how does that work|, can you help me|. How do I do that}{?|}",
    "{Is it possible to|Is there a way to|Would it be possible to|Is it hard to|Do you know how to|Are there ways to|Am I able to} {$wish}{?|}",
    "{{Which command|What command|Which step|What|Which thing} {lets me|helps me to|allows me to|makes it possible to}|What {is|would be} the {best|right|simplest|usual|shortest} {way|method|step} to} {$wish}{?|}",
    "{{Show me|Explain|Tell me|Describe|Teach me|Please explain|Could you show me|Can you tell me|Would you explain|Please tell me} {how to|how I can|how one can|the way to}|{In what way|In which way|By what means|How exactly} {can I|could I|do I|should I|would one}} {$wish}{?|.|, please.|}",
    "{{I do not know how to|I have no idea how to|I cannot find out how to|I forgot how to|It is not clear to me how to} {$wish}{.|, can you help me?|}|{If I want to|When I want to|In order to|Say I want to|To} {$wish}, {what do I type|what must I do|what do I do|where do I begin|how do I do it}{?|}}",
    "{By|With|Through|Using} {which|what} {flag|option|setting|switch|command|step} {can I|could I|do I|may I|would I} {$wish}{?|}",
)
_THING_FRAMES = (
    "{Could you name|Can you name|Would you tell me|Please name|Do you happen to know|Let me know|Let me see|Please write|I need to know|I would like to hear|I'd like to see|Could I have|May I see|Can I get} {$thing}{?|.|, please.|}",
    "{Where can I find|Where do I see|Where can I look up|What can you tell me about|What do you know about|What should I know about|I cannot remember|I am looking for|I must know|Nobody told me|I could not find} {$thing}{?|.|}",
)


_ANSWERS = {
    "who I am": "I am localchat's built-in demo model, a tiny program that runs on your own computer.",
    "other models": "No, I am localchat's own demo model, trained from nothing for this project.",
    "who made me": "I was made by the localchat project and trained on text that was written for it.",
    "how large I am": "I have about five million parameters and my file is smaller than 4 MB.",
    "what I can do": "I can chat a little, answer questions about localchat, call tools, repeat, count and make lists.",
    "what I cannot do": "I know nothing about the world, and I cannot translate, write stories or do hard sums.",
    "what localchat is": "localchat is a small chat client in plain Python and a server around llama.cpp.",
    "starting with make": "Type `make run`: it builds everything once and starts the server.",
    "starting the server": "Start the server with `python -m localchat.server`, or with `make run` the first time.",
    "another model": "Give the file to the server: `python -m localchat.server MODEL.gguf`. Any GGUF model works.",
    "the port": "The server listens on 127.0.0.1, port 8080, unless you give `--port`.",
    "changing the port": "Use `--port` and `--host`, for example `python -m localchat.server --port 9000`.",
    "the options of the server": "The options are --host, --port, --ctx, --parallel, --gpu-layers, --threads, --api-key and --alias.",
    "the context": "Use `--ctx` with a number of tokens, for example `--ctx 2048`.",
    "many users": "Many requests run at the same time; `--parallel` sets how many.",
    "the API key": "Start the server with `--api-key KEY`; clients then have to send that key.",
    "the graphics card": "All layers go to the GPU when the build of llama.cpp has one; `--gpu-layers` changes that.",
    "threads and speed": "Use `--threads` to set the number of CPU threads.",
    "the name of the model": "Use `--alias NAME`; clients then see the model under that name.",
    "the base URL": "The base URL is http://127.0.0.1:8080/v1.",
    "OpenAI clients": "Every OpenAI client works: set its base URL to http://127.0.0.1:8080/v1.",
    "the terminal client": 'Type `python -m localchat "your text"`; the answer is streamed to the terminal.',
    "another server": "Use `--base-url URL` or set OPENAI_BASE_URL.",
    "the endpoints": "There are POST /v1/chat/completions, GET /v1/models and GET /health.",
    "health": "Ask GET /health; it tells whether the server is ready.",
    "listing models": "Ask GET /v1/models; it lists the models that the server offers.",
    "streaming": 'Send "stream": true; the answer then comes token by token as server-sent events.',
    "the Python client": 'Write `from localchat import Client, chat`; then `chat("Hello")` asks the server.',
    "copying the client": "Copy the folder localchat, or write one file with localchat.extras.vendor. It needs only the standard library.",
    "what must be installed": "The client needs only Python's standard library; the server needs llama-cpp-python.",
    "the Python version": "localchat needs Python 3.9 or newer.",
    "working offline": "Everything runs on your own computer, without internet and without a download.",
    "the tests": "Type `make test`; the tests need no download.",
    "stopping the server": "Press Ctrl-C in the terminal where the server runs.",
    "the licence": "localchat and this model are under the MIT licence.",
    "tools": 'Send your functions as "tools" in the request; I answer with a call that your program runs.',
    "thinking": "When you ask me to think, I first write a short thought and then the answer.",
}
# What users want to do, and what they ask for, by topic. Not every topic has both.
_WISHES, _THINGS = headed("questions_wishes"), headed("questions_things")


def _framed(subject: str) -> tuple[str, ...]:
    """The frames around the wishes and the things of a topic."""
    wishes, things = "|".join(_WISHES.get(subject, ())), "|".join(_THINGS.get(subject, ()))
    framed = [frame.replace("$wish", wishes) for frame in _WISH_FRAMES if wishes]
    return (*framed, *(frame.replace("$thing", things) for frame in _THING_FRAMES if things))


TOPICS = tuple(
    Topic(subject, Phrasings(_framed(subject) + patterns, lines), _ANSWERS[subject])
    for subject, (patterns, lines) in written("questions").items()
)

_OPENINGS = ("Hi! ", "Hello, ", "Please: ", "One question: ", "Sorry, ", "Tell me, ", "Okay. ", "I wonder: ", "And ")
# Words without meaning here: a question without one of them is another paraphrase.
_DROPPABLE = {"the", "a", "an", "do", "does", "is", "i", "to", "me", "can", "it", "of", "please", "you"}


# Questions that have only the key words of a subject. They teach which words matter.
_FRAMES = phrases(
    """{What about|How about|Something about|Anything about|A question about|Questions about|Info about|Information on|A word on|Details of} $key{?|.|}
    {I have a question about|I'd like to know about|I want to know more about|I am interested in|I need to know about|I ask about|I read about|I was asked about|My friend asked about} {the |}$key{.|}
    {Can you explain|Could you explain|Please explain|Explain|Explain to me|Describe|Tell me more about|Tell me all about|Say something about|Help me with|I need help with} {the |}$key{.|?|}
    {$key, how|$key, what is that|$key, is that possible|$key, how does that work|$key, where|$key, please|$key, tell me|$key, what do I do|$key, explain}{?|}
    {I want|I need|I would like|I'd love to have|I am looking for|We need|We want|I cannot find|I do not understand|I miss|I do not see} {the |}$key{, how|, what now|, what do I do|, can you help|, where is it|, is that possible|}{?|.}
    {How does|How do I do|How is it with|What do I do for|What is the matter with|How do people handle|What do you say about|Where do I find} {the |}$key{?|}
    {In which way|In what way|By what means|With which command|With what option|Through which setting} {do I get|is|do I have|do we get|do they do} {the |}$key{?|}
    {Is it possible to have|Is there something for|Is there a way for|Does localchat know|Does this program know|Do you know anything on|Do you know about} {the |}$key{?|}""",
)
_BEFORE = phrases(
    """{I am new here.|I am a beginner.|I just began.|I have a problem.|Something is unclear.|I am lost.|I read the README.|One more thing.|Now to something else.|Good.|Well.|Help.|Listen.|Dear assistant,|So,|Right,|Quick question:|Next question:|My question is:|I have been thinking:|A friend wants to know:|Before I begin:}""",
)
_AFTER = phrases(
    """{Thanks.|Thank you.|I do not know.|I forgot it.|Please be brief.|I need that now.|Can you tell me?|Do you know?|Any idea?|That is my question.|Please help.|I want to understand that.}""",
)


def question(source: Source) -> Exchange:
    """A question about localchat or the model. Trained questions may be roughened or reduced to key words."""
    subject, phrasings, answer = source.choice(TOPICS)
    text = source.word(phrasings.lines) if source.held_out else _trained_question(source, phrasings)
    return Exchange(text, answer, f"The user asks about {subject}.")


def _trained_question(source: Source, phrasings: Phrasings) -> str:
    kind = source.rng.random()
    if kind < 0.1:
        # The last pattern of a topic has only key words.
        text = source.phrase(_FRAMES, key=source.expand(phrasings.patterns[-1]).rstrip("?.!"))
    else:
        text = source.word(phrasings.lines) if kind < 0.75 else source.expand(source.choice(phrasings.patterns))
    text = _roughened(source, text)
    if source.chance(0.12):
        return f"{source.phrase(_BEFORE)} {text}"
    return f"{text} {source.phrase(_AFTER)}" if source.chance(0.1) else text


def _roughened(source: Source, text: str) -> str:
    kind = source.rng.random()
    if kind < 0.15:
        words = text.split(" ")
        small = [i for i, word in enumerate(words) if word.lower() in _DROPPABLE]
        if small and len(words) > 3:
            del words[source.choice(small)]
        return " ".join(words)
    if kind < 0.25:
        return source.choice(_OPENINGS) + text
    return chat_skills.roughened(source, text)
