"""Send many prompts with bounded concurrency, for Client.map and AsyncClient.map."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import LocalChatError
from .events import Reply
from .request.arguments import with_lists
from .request.completion import CompletionRequest
from .request.models import default_model
from .request.options import check_count, check_options
from .request.prompts import Prompt, as_messages
from .transport.sockets import Driver, run_blocking

if TYPE_CHECKING:
    from .transport.operations import AnyDriver

DEFAULT_CONCURRENCY = 8


class ManyPrompts:
    """The arguments of a call of `map`. Raises TypeError or ValueError if one is wrong."""

    def __init__(self, client: Any, prompts: Iterable[Prompt], options: Mapping[str, Any]) -> None:
        check_options(options, "map")
        if isinstance(prompts, (str, bytes, Mapping)):
            raise TypeError(f"map takes a list of prompts, not {type(prompts).__name__}")
        self._client = client
        self._options = with_lists(options)
        self.prompts = list(prompts)
        self.concurrency = self._options.pop("concurrency", DEFAULT_CONCURRENCY)
        check_count("concurrency", self.concurrency)
        self._on_progress = self._options.pop("on_progress", None)
        for prompt in self.prompts:
            as_messages(prompt, self._options.get("system"))
        # A request that is never sent. Making it checks the options before any prompt is sent.
        self._template = CompletionRequest(client._settings, "", self._options, "map")
        self._n_done = 0

    def map(self) -> list[Reply[Any]]:
        """Send each prompt with a Client, in threads."""
        from concurrent.futures import ThreadPoolExecutor, as_completed  # Imported here: the import takes some ms.

        run_blocking(self._find_model(Driver()))
        drivers = [Driver() for _ in self.prompts]

        def request(driver: Driver, prompt: Prompt) -> Reply[Any]:
            return run_blocking(self._reply(driver, prompt))

        executor = ThreadPoolExecutor(self.concurrency, "localchat-map")
        try:
            futures = [
                executor.submit(contextvars.copy_context().run, request, driver, prompt)
                for driver, prompt in zip(drivers, self.prompts)
            ]
            for _ in as_completed(futures):
                self._report_progress()
            return [future.result() for future in futures]
        finally:  # After Ctrl-C, or an error of `on_progress`, cancel the other requests.
            executor.shutdown(wait=False, cancel_futures=True)
            for driver in drivers:
                driver.cancel()
            executor.shutdown()

    async def map_async(self) -> list[Reply[Any]]:
        """Send each prompt with an AsyncClient, in tasks of the event loop."""
        import asyncio  # Imported here, like the driver: the blocking client does not need it.

        from .transport.aio_sockets import AsyncDriver

        await self._find_model(AsyncDriver())
        gate = asyncio.Semaphore(self.concurrency)

        async def request(prompt: Prompt) -> Reply[Any]:
            async with gate:
                reply = await self._reply(AsyncDriver(), prompt)
            self._report_progress()
            return reply

        tasks = [asyncio.ensure_future(request(prompt)) for prompt in self.prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_model(self, driver: AnyDriver) -> None:
        """Find the model of the server once for all prompts. If that fails, the request of each prompt tries again."""
        if self.prompts and not self._template.names_model:
            with contextlib.suppress(LocalChatError):
                await default_model(self._client._call(driver, self._template))

    async def _reply(self, driver: AnyDriver, prompt: Prompt) -> Reply[Any]:
        try:
            request = CompletionRequest(self._client._settings, prompt, self._options, "chat")
            reply: Reply[Any] = await self._client._reply(driver, request)
            return reply
        except LocalChatError as error:
            return replace(getattr(error, "partial", None) or Reply(), error=error)
        except Exception as error:  # Of a prompt that is not JSON, or of a function of the program, such as `on_retry`.
            failure = LocalChatError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            return Reply(error=failure)

    def _report_progress(self) -> None:
        self._n_done += 1
        if self._on_progress is not None:
            self._on_progress(self._n_done, len(self.prompts))
