"""The loads of `bench.compare`: the requests that are sent to a server, and the figures that are measured.

Every prompt begins with new text, so that no server has it in its prompt cache, except in loads that measure the cache.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import random
import statistics
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .measure import Round, percentile, post, run_load
from .servers import Server

Body = dict[str, Any]

# 400 words that no server has in its cache by chance.
SYSTEM = " ".join(f"rule {i} of this house is number {i * 37 % 101}" for i in range(50))
LONG_PROMPT = " ".join(f"item {i} costs {i * 7919 % 1009} coins and" for i in range(170))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "ages": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "ages"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "create_calendar_entry",
        "parameters": {
            "type": "object",
            "properties": {
                "entry_title": {"type": "string", "maxLength": 24},
                "starts_at_hour": {"type": "integer", "minimum": 0, "maximum": 23},
                "duration_minutes": {"enum": [15, 30, 60]},
                "participants_required": {"type": "boolean"},
            },
            "required": ["entry_title", "starts_at_hour", "duration_minutes", "participants_required"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Figure:
    """One number that a load measures."""

    name: str
    unit: str
    more_is_better: bool


@dataclass(frozen=True)
class Load:
    """One kind of work."""

    name: str
    figures: tuple[Figure, ...]
    # Returns one value for each of `figures`, in their order.
    measure: Callable[[Server, str, argparse.Namespace], tuple[float, ...]]
    # What the server must have been started for, one of `servers.PURPOSES`. Most servers do nothing but embeddings if
    # they are started for these.
    purpose: str = "sized"
    # Whether it measures the first requests of a server, so that nothing may warm it up.
    is_first: bool = False


RATE = Figure("", "tokens/s", True)
FIRST = Figure("first token, median", "ms", False)
LAST_FIRST = Figure("last first token", "ms", False)
GAP = Figure("gap, median", "ms", False)
GAP_P95 = Figure("gap, p95", "ms", False)
GAP_LONGEST = Figure("gap, longest", "ms", False)


def chat(model: str, *messages: tuple[str, str], n_tokens: int, **fields: Any) -> Body:
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "seed": 1,
        "max_tokens": n_tokens,
        "ignore_eos": True,
        "messages": [{"role": role, "content": content} for role, content in messages],
        **fields,
    }


def single(
    name: str,
    unit: str,
    more_is_better: bool,
    measure: Callable[[Server, str, argparse.Namespace], float],
    *,
    purpose: str = "sized",
) -> Load:
    """A load with one figure."""

    def measure_one(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        return (measure(server, model, options),)

    return Load(name, (Figure("", unit, more_is_better),), measure_one, purpose=purpose)


def decode(n_streams: int, n_requests: int) -> Load:
    """Streams that start at the same time, each with some requests one after the other."""

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        texts = random_texts(server, model, 40, n_streams * n_requests)
        bodies = [chat(model, ("user", text), n_tokens=options.tokens) for text in texts]
        rate, first_ms, _, gap_ms, gap_p95_ms, _ = figures_of(run_load(server.url, bodies, n_streams, n_requests))
        return rate, first_ms, gap_ms, gap_p95_ms

    name = f"decode, {n_streams} x {n_requests} requests"
    return Load(name, (RATE, FIRST, GAP, GAP_P95), measure)


def prompts(n_prompt: int, n_streams: int, n_tokens: int, *, is_busy: bool = False, purpose: str = "sized") -> Load:
    """Streams that start at the same time, each with its own prompt of about `n_prompt` tokens.

    With `is_busy` they run beside a process that keeps one core busy.
    """

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        texts = random_texts(server, model, n_prompt, n_streams)
        bodies = [chat(model, ("user", text), n_tokens=n_tokens) for text in texts]
        with busy_processes(1 if is_busy else 0):
            return figures_of(run_load(server.url, bodies, n_streams, 1))

    beside = ", beside a busy process" if is_busy else ""
    name = f"{n_streams} x prompts of {n_prompt}, {n_tokens} tokens{beside}{', no options' * (purpose == 'defaults')}"
    return Load(name, (RATE, FIRST, LAST_FIRST, GAP, GAP_P95, GAP_LONGEST), measure, purpose)


def with_adapters(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    """12 streams over three sets: none, the first adapter, the second one."""
    scales = [(0, 0), (1, 0), (0, 1)]
    sets = [{"lora": [{"id": id, "scale": scale} for id, scale in enumerate(pair)]} for pair in scales]
    bodies = [
        {**chat(model, ("user", f"Tell me {i} things."), n_tokens=options.tokens), **sets[i % 3]} for i in range(12)
    ]
    return figures_of(run_load(server.url, bodies, 12, 1))


def figures_of(measured: Round) -> tuple[float, ...]:
    """Tokens/s, then in ms: the median and the maximum of the first tokens; the median, p95 and maximum of the gaps."""
    firsts = [response.first_s for response in measured.responses]
    gaps = sorted(gap for response in measured.responses for gap in response.gaps_s) or [0.0]
    times = (statistics.median(firsts), max(firsts), percentile(gaps, 50), percentile(gaps, 95), gaps[-1])
    return (measured.tokens_per_s, *(seconds * 1e3 for seconds in times))


def random_texts(server: Server, model: str, n_tokens: int, n_texts: int) -> list[str]:
    """Texts of random words, each of about `n_tokens` tokens by the server's own tokenizer."""
    rng = random.Random(time.time_ns())
    letters = "abcdefghijklmnopqrstuvwxyz"

    def text(n_words: int) -> str:
        return " ".join("".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(n_words))

    sample = text(200)
    root = server.url.removesuffix("/v1")
    n_sample = len(post(root, "/tokenize", {"content": sample, "model": model})["tokens"])
    return [text(max(1, round(200 * n_tokens / n_sample))) for _ in range(n_texts)]


@contextlib.contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """Run `n` processes that each keep one core busy."""
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def prompts_again(n_streams: int) -> Load:
    """Streams whose prompts the server has computed before. They start at the same time."""

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        texts = random_texts(server, model, 60, n_streams)
        bodies = [chat(model, ("user", text), n_tokens=options.tokens) for text in texts]
        run_load(server.url, bodies, n_streams, 1)
        return figures_of(run_load(server.url, bodies, n_streams, 1))[:2]

    return Load(f"{n_streams} streams, the same prompts again", (RATE, FIRST), measure)


def first_token(server: Server, model: str, options: argparse.Namespace) -> float:
    """The median of short requests without a common prefix, sent one after the other."""
    bodies = [chat(model, ("user", f"{time.time_ns()} {i} says hello."), n_tokens=8) for i in range(10)]
    firsts = [response.first_s for body in bodies for response in run_load(server.url, [body], 1, 1).responses]
    return statistics.median(firsts) * 1e3


def short_behind_long(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    """The first token of a short request that is sent after seven long prompts, and of the same request alone."""
    texts = random_texts(server, model, 900, 7)
    long = [chat(model, ("user", text), n_tokens=16) for text in texts]
    short = [chat(model, ("user", f"{time.time_ns()} {i}?"), n_tokens=4) for i in range(2)]
    alone = run_load(server.url, short[:1], 1, 1).responses[0].first_s
    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(run_load, server.url, long, 7, 1)
        time.sleep(0.05)
        behind = run_load(server.url, short[1:], 1, 1).responses[0].first_s
        streams.result()
    return behind * 1e3, alone * 1e3


def shared_prefix(n_streams: int, *, purpose: str = "sized") -> Load:
    """Requests at once whose prompts begin with the same 400 words."""

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        system = ("system", f"{time.time_ns()} {SYSTEM}")
        bodies = [chat(model, system, ("user", f"Question {i}?"), n_tokens=8) for i in range(n_streams)]
        return figures_of(run_load(server.url, bodies, n_streams, 1))[:2]

    name = f"{n_streams} requests, one system prompt{', no options' * (purpose == 'defaults')}"
    return Load(name, (RATE, FIRST), measure, purpose)


def turns(purpose: str) -> Load:
    """Six turns of a conversation at temperature 0, as agents send them, without a seed; the first token of each."""
    figures = tuple(Figure(f"first token of turn {turn}", "ms", False) for turn in range(1, 7))

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        system, *texts = random_texts(server, model, 220, 1) + random_texts(server, model, 36, 6)
        messages, firsts = [("system", system)], []
        for text in texts:
            messages.append(("user", text))
            (response,) = run_load(
                server.url, [chat(model, *messages, n_tokens=48, temperature=0, seed=None)], 1, 1
            ).responses
            messages.append(("assistant", response.text))
            firsts.append(response.first_s * 1e3)
        return tuple(firsts)

    return Load(f"six turns at temperature 0{', no options' * (purpose == 'defaults')}", figures, measure, purpose)


# What people ask for. A real model answers these with texts that repeat themselves here and there.
QUESTIONS = (
    "Write a Python function that reads a CSV file and returns the mean of a column.",
    "Explain in three paragraphs how a canal lock works.",
    "Add type hints to: def add(a, b): return a + b; def sub(a, b): return a - b; def neg(a): return -a",
    "List twenty rivers of Europe with the countries through which they flow.",
    "Tell a short story about a clockmaker and a flood.",
)
# Texts that a model is asked to copy.
COPIES = (
    """Repeat this text exactly, without any comment:

The mill stands where the brook leaves the wood. Its wheel has not turned since the new road was built, and swallows
nest under the roof. In spring the granddaughter of the miller comes with a ladder, counts the nests, and writes the
number on the door. The numbers go back to the year of the war.""",
    """Add a docstring to each function and repeat the whole file:

```python
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def diagonal(width, height):
    return (width ** 2 + height ** 2) ** 0.5

def scale(width, height, factor):
    return width * factor, height * factor
```""",
)


def written(name: str, questions: tuple[str, ...], temperature: float) -> Load:
    """One stream after the other of texts as people ask for them. Needs a real model."""

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        fields = {"temperature": temperature, "top_k": 40, "seed": None, "ignore_eos": False}
        bodies = [chat(model, ("user", question), n_tokens=160, **fields) for question in questions]
        responses = run_load(server.url, bodies, 1, len(bodies)).responses
        gaps = sorted(gap for response in responses for gap in response.gaps_s)
        # Without the time of the prompts.
        rate = sum(response.n_tokens - 1 for response in responses) / sum(gaps)
        median, p95 = statistics.median(gaps), percentile(gaps, 95)
        return rate, median * 1e3, p95 * 1e3, p95 / median

    return Load(name, (RATE, GAP, GAP_P95, Figure("gap, p95 to median", "", False)), measure)


def conversation(server: Server, model: str, options: argparse.Namespace) -> float:
    messages: list[tuple[str, str]] = [("system", f"{time.time_ns()} {SYSTEM}")]
    firsts = []
    for turn in range(10):
        messages.append(("user", f"This is turn {turn}: what now?"))
        (response,) = run_load(server.url, [chat(model, *messages, n_tokens=32)], 1, 1).responses
        messages.append(("assistant", response.text))
        firsts.append(response.first_s)
    return statistics.median(firsts[1:]) * 1e3


def choices(server: Server, model: str, options: argparse.Namespace) -> float:
    body = chat(model, ("user", f"{time.time_ns()} {SYSTEM}"), n_tokens=options.tokens, n=8)
    return run_load(server.url, [body], 1, 1).tokens_per_s


def json_schema(server: Server, model: str, options: argparse.Namespace) -> float:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    body = chat(model, ("user", "Who?"), n_tokens=options.tokens, response_format=form, ignore_eos=False)
    return run_load(server.url, [body] * 4, 4, 2).tokens_per_s


def free_text(server: Server, model: str, options: argparse.Namespace) -> float:
    """The requests of `json_schema` without the schema."""
    return run_load(server.url, [chat(model, ("user", "Who?"), n_tokens=options.tokens)] * 4, 4, 2).tokens_per_s


def tool_calls(server: Server, model: str, options: argparse.Namespace) -> float:
    """4 streams of calls. The schema forces all bytes except the values."""
    body = chat(
        model,
        ("user", "Add it."),
        n_tokens=options.tokens,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        ignore_eos=False,
    )
    return run_load(server.url, [body] * 4, 4, 2).tokens_per_s


def equal_greedy(server: Server, model: str, options: argparse.Namespace) -> float:
    """How many of 32 greedy requests have the same text when they run together as when each runs alone."""
    texts = [text for n in (20, 60, 150, 300) for text in random_texts(server, model, n, 8)]
    bodies = [chat(model, ("user", text), n_tokens=48, temperature=0, top_k=1) for text in texts]
    alone = {i: run_load(server.url, [body], 1, 1).responses[0].text for i, body in enumerate(bodies)}
    with ThreadPoolExecutor(16) as pool:
        together = pool.map(lambda body: run_load(server.url, [body], 1, 1).responses[0].text, bodies)
        return float(sum(text == alone[i] for i, text in enumerate(together)))


def gap_beside_a_long_prompt(server: Server, model: str, options: argparse.Namespace) -> float:
    """The 95th percentile of the gaps of 8 streams while long prompts of other requests are prefilled."""
    bodies = [chat(model, ("user", f"Tell me {i} things."), n_tokens=options.tokens) for i in range(8)]
    long = chat(model, ("user", f"{time.time_ns()} {LONG_PROMPT}"), n_tokens=8)
    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(run_load, server.url, bodies, 8, 1)
        time.sleep(0.2)
        run_load(server.url, [long], 1, 2)
        gaps = sorted(gap for response in streams.result().responses for gap in response.gaps_s)
    return percentile(gaps, 95) * 1e3


def images(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    """4 requests at once, each with another image; and again beside a stream of text, for the gaps of that stream."""

    def bodies() -> list[Body]:
        salt = time.time_ns()
        urls = (base64.b64encode(random_png(256, salt + i)).decode() for i in range(4))
        text = {"type": "text", "text": f"What is on {salt}?"}
        parts = ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}} for url in urls)
        messages = ([{"role": "user", "content": [part, text]}] for part in parts)
        return [{**chat(model, n_tokens=options.tokens), "messages": own} for own in messages]

    measured = figures_of(run_load(server.url, bodies(), 4, 1))
    with ThreadPoolExecutor(1) as pool:
        other = [chat(model, ("user", f"{time.time_ns()}: tell me things."), n_tokens=4 * options.tokens)]
        stream = pool.submit(run_load, server.url, other, 1, 1)
        time.sleep(0.2)
        run_load(server.url, bodies(), 4, 1)
        gaps = stream.result().responses[0].gaps_s
    return (*measured[:3], max(gaps) * 1e3)


def random_png(side: int, seed: int) -> bytes:
    rows = random.Random(seed)
    data = zlib.compress(b"".join(b"\0" + rows.randbytes(3 * side) for _ in range(side)), 1)
    parts = (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def embeddings(server: Server, model: str, options: argparse.Namespace) -> float:
    """Texts per second of 4 concurrent requests, each with 16 texts of some 30 words."""
    salt = time.time_ns()
    texts = [f"{salt} {i} " + " ".join(SYSTEM.split()[i : i + 28]) for i in range(64)]
    started = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:

        def embed(i: int) -> int:
            body = {"model": model, "input": texts[16 * i : 16 * i + 16]}
            return len(post(server.url, "/embeddings", body)["data"])

        n_vectors = sum(pool.map(embed, range(4)))
    return n_vectors / (time.perf_counter() - started)


def memory(server: Server, model: str, options: argparse.Namespace) -> float:
    return server.memory_mb


def cost(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    """What a server costs that was just started: time until its first token, then memory and processor time."""
    (response,) = run_load(server.url, [chat(model, ("user", "Hello!"), n_tokens=8)], 1, 1).responses
    answered_ms = (server.start_s + response.first_s) * 1e3
    idle_ms, memory_mb = idle_cpu(server, model, options), server.memory_mb
    texts = random_texts(server, model, 40, 16)
    run_load(server.url, [chat(model, ("user", text), n_tokens=options.tokens) for text in texts], 16, 1)
    # At least a megabyte, so that a ratio exists.
    per_stream = max(server.memory_mb - memory_mb, 1.0) / 15
    return answered_ms, response.first_s * 1e3, idle_ms, memory_mb, per_stream


def first_requests(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    """The median first token of the first requests after the start, with 1, then 4, then 16 at once."""
    medians = []
    for n in (1, 4, 16):
        bodies = [chat(model, ("user", f"{n} {i} hello"), n_tokens=4) for i in range(n)]
        medians.append(statistics.median(response.first_s for response in run_load(server.url, bodies, n, 1).responses))
    return tuple(seconds * 1e3 for seconds in medians)


def idle_cpu(server: Server, model: str, options: argparse.Namespace) -> float:
    """Milliseconds of processor time in a second without requests; at least 1, so that a ratio exists."""
    time.sleep(1)  # Work that the last load has left ends within this second.
    before = server.cpu_s
    time.sleep(1)
    return max((server.cpu_s - before) * 1e3, 1.0)


LOADS = {
    "lora": Load("12 streams, 3 sets of --lora", (RATE, FIRST, LAST_FIRST, GAP, GAP_P95, GAP_LONGEST), with_adapters),
    "started": Load(
        "first token in the first requests",
        tuple(Figure(f"{n} streams", "ms", False) for n in (1, 4, 16)),
        first_requests,
        is_first=True,
    ),
    "cost": Load(
        "a server that was just started",
        (
            Figure("start to first token", "ms", False),
            Figure("first token of the first request", "ms", False),
            Figure("processor time per idle second", "ms", False),
            Figure("memory", "MB", False),
            Figure("memory of a further stream", "MB", False),
        ),
        cost,
        is_first=True,
    ),
    "decode1": decode(1, 3),
    "decode4": decode(4, 2),
    "decode16": decode(16, 1),
    "decode64": decode(64, 1),
    **{f"p{n}x{m}": prompts(n, m, 48) for n in (20, 220, 2000) for m in (1, 4, 16)},
    **{f"default8x{n}": prompts(n, 8, 48, purpose="defaults") for n in (40, 220)},
    "default8shared": shared_prefix(8, purpose="defaults"),
    "turns": turns("sized"),
    "default_turns": turns("defaults"),
    "natural": written("texts as people ask for them, temperature 0.7", QUESTIONS, 0.7),
    "natural0": written("texts as people ask for them, temperature 0", QUESTIONS, 0),
    "copy": written("texts to copy, temperature 0", COPIES, 0),
    **{f"again{n}": prompts_again(n) for n in (16, 64)},
    "p1600x8": prompts(1600, 8, 256),
    **{f"busy{n}x{m}": prompts(n, m, 48, is_busy=True) for n, m in ((20, 1), (220, 1), (220, 16))},
    "fair": Load(
        "a short prompt behind seven long ones",
        (Figure("first token", "ms", False), Figure("alone", "ms", False)),
        short_behind_long,
    ),
    "equal": single("greedy texts of 32, equal together and alone", "texts", True, equal_greedy),
    "first": single("first token of a short request alone", "ms", False, first_token),
    "shared": shared_prefix(16),
    "conversation": single("conversation, turns 2 to 10: first token", "ms", False, conversation),
    "n8": single("8 choices of one prompt", "tokens/s", True, choices),
    "free4": single("4 streams, twice, without a schema", "tokens/s", True, free_text),
    "schema": single("4 streams under a JSON schema", "tokens/s", True, json_schema),
    "tools": single("4 streams of required tool calls", "tokens/s", True, tool_calls),
    "gap": single("8 streams' gap p95 beside a long prompt", "ms", False, gap_beside_a_long_prompt),
    "images": Load(
        "4 streams with an image each",
        (RATE, FIRST, LAST_FIRST, Figure("another stream's longest gap", "ms", False)),
        images,
    ),
    "embeddings": single("embeddings, 4 x 16 texts", "texts/s", True, embeddings, purpose="embeddings"),
    "memory": single("memory after all this", "MB", False, memory),
    "idle": single("processor time per idle second", "ms", False, idle_cpu),
}

# The loads of bench/README.md: `cpu` with a model of 0.5B parameters, `small` with one of 10M.
SETS = {
    "all": [name for name in LOADS if name not in ("images", "lora", "natural", "natural0", "copy")],
    "images": ["images"],  # with --mmproj
    "cpu": ["started", "p20x1", "p220x4", "p220x16", "busy20x1", "shared"],
    "small": ["started", "decode1", "decode4", "decode16", "schema", "free4"],
    "gpu": ["started", "decode1", "decode16", "decode64", "again16", "again64", "cost"],
}
