"""Send many prompts with bounded concurrency, for Client.map and AsyncClient.map.

The results are in the order of the prompts. If a request fails, its error takes the place of its reply, and the other
requests continue.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Union

from ..errors import LocalChatError
from ..events import Reply
from ..reply.payloads import Prompt, check_prompt
from ..transport.keywords import MapKeywords, check_keywords

Outcome = Union[Reply[Any], LocalChatError]
# The prompts, the concurrency, the callback, and the options of each call of `chat`.
Parsed = tuple[list[Prompt], int, Any, dict[str, Any]]


def map_prompts(chat: Callable[..., Reply[Any]], started: list[weakref.ref[Any]], parsed: Parsed) -> list[Outcome]:
    """Call `chat` with each prompt, in threads.

    Args:
        parsed: What `parse` returned.
        started: Weak references to the calls, which `chat` adds: they are cancelled if this function is interrupted.
    """
    prompts, concurrency, on_progress, chat_options = parsed

    def request(prompt: Prompt) -> Outcome:
        try:
            return chat(prompt, **chat_options)
        except LocalChatError as error:
            return error

    from concurrent.futures import ThreadPoolExecutor, as_completed  # Imported here: the import takes some ms.

    pool = ThreadPoolExecutor(concurrency, "localchat-map")
    try:
        futures = [pool.submit(contextvars.copy_context().run, request, prompt) for prompt in prompts]
        for n_done, _ in enumerate(as_completed(futures), 1):
            if on_progress is not None:
                on_progress(n_done, len(futures))
        return [future.result() for future in futures]
    finally:  # After Ctrl-C, or an error of `on_progress`, cancel the other requests.
        pool.shutdown(wait=False, cancel_futures=True)
        for reference in started:
            call = reference()
            if call is not None:
                call.cancel()
        pool.shutdown()


async def map_prompts_async(chat: Callable[..., Awaitable[Reply[Any]]], parsed: Parsed) -> list[Outcome]:
    """Call `chat` with each prompt, in tasks of the event loop."""
    prompts, concurrency, on_progress, chat_options = parsed
    import asyncio  # Imported here: the blocking client does not need it.

    gate, n_prompts, n_done = asyncio.Semaphore(concurrency), len(prompts), 0

    async def request(prompt: Prompt) -> Outcome:
        nonlocal n_done
        async with gate:
            try:
                outcome: Outcome = await chat(prompt, **chat_options)
            except LocalChatError as error:
                outcome = error
        n_done += 1
        if on_progress is not None:
            on_progress(n_done, n_prompts)
        return outcome

    tasks = [asyncio.ensure_future(request(prompt)) for prompt in prompts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parse(prompts: Iterable[Prompt], options: Mapping[str, Any]) -> Parsed:
    """The prompts, the concurrency, the callback, and the options of each call of `chat`.

    Raises:
        TypeError, ValueError: A prompt or an option is wrong.
    """
    check_keywords(options, MapKeywords, "map")
    if isinstance(prompts, (str, bytes, Mapping)):
        raise TypeError(f"map takes a list of prompts, not {type(prompts).__name__}")
    listed, chat_options = list(prompts), dict(options)
    for prompt in listed:
        check_prompt(prompt)
    concurrency, on_progress = chat_options.pop("concurrency", 8), chat_options.pop("on_progress", None)
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    return listed, concurrency, on_progress, chat_options
