"""Send many prompts with bounded concurrency, for Client.map and AsyncClient.map.

The results are in the order of the prompts. If a request fails, its error takes the place of its reply, and the other
requests continue.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Mapping
from typing import Any, Union

from ..errors import LocalChatError
from ..events import Reply
from ..reply.payloads import Prompt, check_prompt
from ..transport.keywords import MapKeywords, check_count, check_keywords
from ..transport.sockets import Driver, run_blocking
from .media import reusable

Outcome = Union[Reply[Any], LocalChatError]
# The prompts, the concurrency, the callback, and the options of each call of `chat`.
Parsed = tuple[list[Prompt], int, Any, dict[str, Any]]


def map_prompts(client: Any, parsed: Parsed) -> list[Outcome]:
    """Send each prompt with a Client, in threads. `parsed` is what `parse` returned."""
    from concurrent.futures import ThreadPoolExecutor, as_completed  # Imported here: the import takes some ms.

    prompts, concurrency, on_progress, options = parsed
    drivers = [Driver() for _ in prompts]

    def request(driver: Driver, prompt: Prompt) -> Outcome:
        return run_blocking(_outcome(client, driver, prompt, options))

    pool = ThreadPoolExecutor(concurrency, "localchat-map")
    try:
        futures = [
            pool.submit(contextvars.copy_context().run, request, driver, prompt)
            for driver, prompt in zip(drivers, prompts)
        ]
        for n_done, _ in enumerate(as_completed(futures), 1):
            if on_progress is not None:
                on_progress(n_done, len(futures))
        return [future.result() for future in futures]
    finally:  # After Ctrl-C, or an error of `on_progress`, cancel the other requests.
        pool.shutdown(wait=False, cancel_futures=True)
        for driver in drivers:
            driver.cancel()
        pool.shutdown()


async def map_prompts_async(client: Any, parsed: Parsed) -> list[Outcome]:
    """Send each prompt with an AsyncClient, in tasks of the event loop."""
    import asyncio  # Imported here, like the driver: the blocking client does not need it.

    from ..transport.aio_sockets import AsyncDriver

    prompts, concurrency, on_progress, options = parsed
    gate, n_done = asyncio.Semaphore(concurrency), 0

    async def request(prompt: Prompt) -> Outcome:
        nonlocal n_done
        async with gate:
            outcome = await _outcome(client, AsyncDriver(), prompt, options)
        n_done += 1
        if on_progress is not None:
            on_progress(n_done, len(prompts))
        return outcome

    tasks = [asyncio.ensure_future(request(prompt)) for prompt in prompts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outcome(client: Any, driver: Any, prompt: Prompt, options: dict[str, Any]) -> Outcome:
    try:
        reply: Reply[Any] = await client._chat(driver, prompt, options)
        return reply
    except LocalChatError as error:
        return error


def parse(prompts: Iterable[Prompt], options: Mapping[str, Any]) -> Parsed:
    """The parts of `Parsed`. Raises TypeError or ValueError if one is wrong."""
    check_keywords(options, MapKeywords, "map")
    if isinstance(prompts, (str, bytes, Mapping)):
        raise TypeError(f"map takes a list of prompts, not {type(prompts).__name__}")
    listed, chat_options = list(prompts), reusable(options)
    for prompt in listed:
        check_prompt(prompt)
    concurrency, on_progress = chat_options.pop("concurrency", 8), chat_options.pop("on_progress", None)
    check_count("concurrency", concurrency)
    if on_progress is not None and not callable(on_progress):
        raise TypeError(f"on_progress is a function, not {on_progress!r}")
    return listed, concurrency, on_progress, chat_options
