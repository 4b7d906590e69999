"""Many prompts with bounded concurrency: what Client.map and its asynchronous twin do.

Answers come in the order of the prompts; an error of one is its value and disturbs no other.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Union

from .errors import LocalChatError
from .events import Reply
from .keywords import MapKeywords, check_keywords
from .payloads import Prompt, check_prompt

Outcome = Union[Reply[Any], LocalChatError]


def map_prompts(
    chat: Callable[..., Reply[Any]],
    started: list[weakref.ref[Any]],
    prompts: Iterable[Prompt],
    options: Mapping[str, Any],
) -> list[Outcome]:
    """The answers of `chat`, which runs in threads and puts each of its calls into `started`."""
    wanted, concurrency, on_progress, rest = _read(prompts, options)

    def ask(prompt: Prompt) -> Outcome:
        try:
            return chat(prompt, **rest)
        except LocalChatError as error:
            return error

    from concurrent.futures import ThreadPoolExecutor, as_completed  # Late: it costs some ms.

    pool = ThreadPoolExecutor(concurrency, "localchat-map")
    try:
        futures = [pool.submit(ask, prompt) for prompt in wanted]
        for n_done, _ in enumerate(as_completed(futures), 1):
            if on_progress is not None:
                on_progress(n_done, len(futures))
        return [future.result() for future in futures]
    finally:  # After Ctrl-C, or an error of `on_progress`, the other answers are not wanted.
        pool.shutdown(wait=False, cancel_futures=True)
        for reference in started:
            call = reference()
            if call is not None:
                call.cancel()
        pool.shutdown()


async def map_prompts_async(
    chat: Callable[..., Awaitable[Reply[Any]]], prompts: Iterable[Prompt], options: Mapping[str, Any]
) -> list[Outcome]:
    """The same in tasks of the event loop."""
    wanted, concurrency, on_progress, rest = _read(prompts, options)
    import asyncio  # Late: the blocking client does without it.

    gate, n_done = asyncio.Semaphore(concurrency), 0

    async def ask(prompt: Prompt) -> Outcome:
        nonlocal n_done
        async with gate:
            try:
                answer: Outcome = await chat(prompt, **rest)
            except LocalChatError as error:
                answer = error
        n_done += 1
        if on_progress is not None:
            on_progress(n_done, len(wanted))
        return answer

    tasks = [asyncio.ensure_future(ask(prompt)) for prompt in wanted]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read(prompts: Iterable[Prompt], options: Mapping[str, Any]) -> tuple[list[Prompt], int, Any, dict[str, Any]]:
    """The prompts, the concurrency, the callback, and the options of each call.

    Raises:
        TypeError, ValueError: A prompt or an option is wrong; nothing has been sent.
    """
    check_keywords(options, MapKeywords, "map")
    if isinstance(prompts, (str, bytes, Mapping)):
        raise TypeError(f"map takes a list of prompts, not {type(prompts).__name__}")
    wanted, rest = list(prompts), dict(options)
    for prompt in wanted:
        check_prompt(prompt)
    concurrency, on_progress = rest.pop("concurrency", 8), rest.pop("on_progress", None)
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    return wanted, concurrency, on_progress, rest
