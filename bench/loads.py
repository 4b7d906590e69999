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
    # Whether the load needs a server process that is started for embeddings: most servers then do nothing else.
    embeds: bool = False


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
    embeds: bool = False,
) -> Load:
    """A load with one figure."""

    def measure_one(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        return (measure(server, model, options),)

    return Load(name, (Figure("", unit, more_is_better),), measure_one, embeds=embeds)


def decode(n_streams: int) -> Load:
    def measure(server: Server, model: str, options: argparse.Namespace) -> float:
        bodies = [chat(model, ("user", f"Tell me {i} things."), n_tokens=options.tokens) for i in range(n_streams)]
        return run_load(server.url, bodies, n_streams, 1).tokens_per_s

    return single(f"decode, {n_streams} streams", "tokens/s", True, measure)


def prompts(n_prompt: int, n_streams: int, n_tokens: int, *, is_busy: bool = False) -> Load:
    """Streams that start at the same time, each with its own prompt of about `n_prompt` tokens.

    With `is_busy` they run beside a process that keeps one core busy.
    """

    def measure(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
        texts = random_texts(server, model, n_prompt, n_streams)
        bodies = [chat(model, ("user", text), n_tokens=n_tokens) for text in texts]
        with busy_processes(1 if is_busy else 0):
            return figures_of(run_load(server.url, bodies, n_streams, 1))

    beside = ", beside a busy process" if is_busy else ""
    name = f"{n_streams} x prompts of {n_prompt}, {n_tokens} tokens{beside}"
    return Load(name, (RATE, FIRST, LAST_FIRST, GAP, GAP_P95, GAP_LONGEST), measure)


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


def shared_prefix(server: Server, model: str, options: argparse.Namespace) -> tuple[float, ...]:
    salt = time.time_ns()
    bodies = [chat(model, ("system", f"{salt} {SYSTEM}"), ("user", f"Question {i}?"), n_tokens=8) for i in range(16)]
    measured = run_load(server.url, bodies, 16, 1)
    return measured.tokens_per_s, statistics.median(response.first_s for response in measured.responses) * 1e3


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


def start(server: Server, model: str, options: argparse.Namespace) -> float:
    return server.start_s * 1e3


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
    ),
    "decode1": decode(1),
    "decode4": decode(4),
    "decode16": decode(16),
    "decode64": decode(64),
    **{f"p{n}x{m}": prompts(n, m, 48) for n in (20, 220, 2000) for m in (1, 4, 16)},
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
    "shared": Load("16 requests, one system prompt", (RATE, FIRST), shared_prefix),
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
    "embeddings": single("embeddings, 4 x 16 texts", "texts/s", True, embeddings, embeds=True),
    "memory": single("resident memory after all this", "MB", False, memory),
    "start": single("start to first answer", "ms", False, start),
    "idle": single("processor time per idle second", "ms", False, idle_cpu),
}

# The loads of bench/README.md: `cpu` with a model of 0.5B parameters, `small` with one of 10M.
SETS = {
    "all": [name for name in LOADS if name not in ("images", "lora")],
    "images": ["images"],  # with --mmproj
    "cpu": ["started", "p20x1", "p220x4", "p220x16", "busy20x1", "shared"],
    "small": ["started", "decode1", "decode4", "decode16", "schema", "free4"],
    "gpu": ["started", "decode1", "decode16", "decode64", "again16", "again64", "start"],
}
