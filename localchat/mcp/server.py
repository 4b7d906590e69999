"""The blocking `MCPServer`, and the part of it and of `AsyncMCPServer` that does not wait.

The coroutines await only a waiter: a `session.Waiter`, which blocks and never suspends them, or an `aio.AsyncWaiter`.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..agent.tools import Tool
from ..errors import DoesNotFit
from ..request.options import check_callback
from ..schema import targets
from ..texts import escaped
from ..transport.secrets import Secrets, secrets_of_headers, secrets_of_url
from ..transport.sockets import run_blocking
from ..transport.timeouts import Timeout
from . import revisions
from .features import ClientFeatures, RequestFunction, UnsupportedRequest
from .headers import argument_headers, check_marks
from .http import HTTPTransport
from .messages import Json, MCPError, encode, failure
from .names import command_name, free_name, is_url, url_name
from .negotiation import Negotiation, request_meta
from .process import ProcessTransport, secrets_of_environment
from .results import MCPResult, read_result
from .revisions import ServerDescription
from .session import AnyWaiter, CallLimits, Progress, Session, Transport, Waiter, log

if TYPE_CHECKING:
    from typing_extensions import Self

# A program that npx fetches first takes some time to start, and a tool may compile or test something.
DEFAULT_TIMEOUT = Timeout(connect=10, first=120, idle=None, stall=120, total=1800)

_MAX_PAGES = 1000
_MAX_TTL_MS = 1e9  # An integer can be too large to become seconds.
_MAX_ROUNDS = 10  # The limit of rounds in which a server requests input for one call.


class ToolList(NamedTuple):
    """The tools of a server when it listed them."""

    definitions: dict[str, Json]  # By their names.
    fresh_until: float  # The end of the time that the server sent with them, by time.monotonic; only since 2026-07-28.
    n_changes: int  # `Session.n_tool_changes` before the list was requested: another number means that it has changed.


def _ttl_s(page: Json) -> float:
    """The seconds for which a page of a list may be used; 0 if the server sent no time."""
    ttl_ms = page.get("ttlMs")
    return min(ttl_ms, _MAX_TTL_MS) / 1000 if isinstance(ttl_ms, (int, float)) else 0


class BaseMCPServer:
    """What MCPServer and AsyncMCPServer do, as coroutines with a waiter."""

    _runs_coroutines = False  # Whether the functions of `on_request` may be coroutine functions.

    def __init__(
        self,
        command: str | os.PathLike[str],
        *arguments: str | os.PathLike[str],
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | bool | None = None,
        verify: Any = None,
        timeout: Timeout | float | None = None,
        media: Collection[str] = (),
        on_request: Mapping[str, RequestFunction] | None = None,
        revision: str | None = None,
    ) -> None:
        command_line = [os.fspath(word) for word in (command, *arguments)]
        has_url = not arguments and is_url(command_line[0])
        unused = {"env": env, "cwd": cwd} if has_url else {"headers": headers, "proxy": proxy, "verify": verify}
        for option, value in unused.items():
            if value is not None:
                raise ValueError(f"{option} is for a server {'that is a process' if has_url else 'at a URL'}")
        if not all(isinstance(value, str) for value in (env or {}).values()):
            raise TypeError("the values of env are texts")
        if not set(media) <= {"image", "audio"}:
            raise ValueError(f"media has image and audio, not {', '.join(set(media) - {'image', 'audio'})}")
        if revision is not None and revision not in revisions.REVISIONS:
            raise ValueError(f"revision is one of {', '.join(revisions.REVISIONS)}, not {revision!r}")
        self.name = name or (url_name(command_line[0]) if has_url else command_name(command_line))
        self._timeout = DEFAULT_TIMEOUT if timeout is None else Timeout.of(timeout)
        self._media = tuple(media)
        self._features = ClientFeatures(on_request)
        if self._features.coroutine_functions and not self._runs_coroutines:
            methods = ", ".join(self._features.coroutine_functions)
            raise TypeError(f"only an AsyncMCPServer can run coroutine functions: {methods}")
        self._requested_revision = revision
        self._transport: Transport
        if has_url:
            options = {"headers": headers, "proxy": proxy, "verify": verify}
            self._transport = HTTPTransport(self.name, command_line[0], self._timeout, options)
            self._secrets = Secrets([*secrets_of_url(command_line[0]), *secrets_of_headers(headers or {})])
        else:
            self._transport = ProcessTransport(self.name, command_line, env or {}, cwd)
            self._secrets = Secrets(secrets_of_environment(env or {}))
        # None before the server is started, and the function that ends it, also at the end of the program.
        self._session: Session | None = None
        self._finalizer: Any = None
        self._description = ServerDescription("")
        self._tool_list: ToolList | None = None  # The tools; None before they are listed.

    @property
    def revision(self) -> str:
        """The revision of the protocol that was negotiated; empty before the server is started."""
        return self._description.revision

    @property
    def instructions(self) -> str:
        """What the server says about the use of its tools, for a system message; empty if it says nothing."""
        return self._description.instructions

    def __repr__(self) -> str:
        """Leave out the arguments, which may have keys."""
        return f"{type(self).__name__}(name={self.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a process or a connection")

    def _function(self, name: str) -> Callable[..., Any]:
        """The function of a tool, which gets the arguments by name."""
        raise NotImplementedError

    def _begin(self) -> Session:
        """Make the session. After that, and only then, the caller has to end the server if it cannot be started."""
        if self._session is not None:
            raise RuntimeError(f"{self!r} was started before: make another one")
        self._session = Session(self.name, self._transport, self._features, self._secrets)
        self._finalizer = weakref.finalize(self, _close, self._transport, os.getpid())
        return self._session

    async def _start(self, waiter: AnyWaiter, session: Session) -> None:
        await waiter.run(functools.partial(self._transport.start, session))
        negotiation = Negotiation(session, self._transport, self._features, self._timeout)
        self._description = await negotiation.negotiate(waiter, self._requested_revision)
        log.debug("%s: revision %s", self.name, self.revision)

    # Requests.

    def _ready_session(self) -> Session:
        if self._session is None:
            raise RuntimeError(f"{self!r} is not started: use it in a `with` block")
        return self._session

    def _limits(self, timeout: Timeout | float | None) -> CallLimits:
        """The limits of a call, for its option `timeout`."""
        return CallLimits.of(self._timeout if timeout is None else Timeout.of(timeout))

    async def _request(
        self,
        waiter: AnyWaiter,
        method: str,
        params: Json,
        limits: CallLimits | None = None,
        headers: Mapping[str, str] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Json:
        """The result of a request.

        Since revision 2026-07-28 a result may be a request for input: the functions of the program give the input, and
        the request is sent again with it.
        """
        session = self._ready_session()
        limits = limits or self._limits(None)
        if revisions.is_modern(self.revision):
            params = {**params, "_meta": request_meta(self.revision, self._features)}
        input_params: Json = {}  # Those with the input that the server has requested.
        for _ in range(_MAX_ROUNDS):
            result = await session.request(
                waiter,
                method,
                {**params, **input_params},
                limits,
                headers=headers,
                on_progress=on_progress,
                reports_cancel=not self._is_stateless_http,
            )
            result_type = result.get("resultType", "complete")
            if result_type == "complete":
                return result
            if result_type != "input_required":
                raise self._error(
                    f"the result of {method} has the type {escaped(str(result_type))!r}, which is unknown"
                )
            input_params = await self._input(waiter, result)
        raise self._error(f"it still requests input for {method} after {_MAX_ROUNDS} rounds")

    async def _input(self, waiter: AnyWaiter, result: Json) -> Json:
        """The parameters that give a server the input that it requests."""
        requests = result.get("inputRequests")
        responses = {}
        for key, request in requests.items() if isinstance(requests, dict) else ():
            fields = request if isinstance(request, dict) else {}
            method, params = str(fields.get("method")), fields.get("params")
            if method not in self._features.functions:
                raise self._error(f"it requests {escaped(method)}, for which on_request has no function")
            answer = functools.partial(self._features.answer, method, params if isinstance(params, dict) else {})
            try:
                responses[key] = await waiter.run(answer)
            except UnsupportedRequest as error:
                raise self._error(f"it requests {method}, but {error}") from None
            except Exception as error:
                raise self._error(f"the function for {method} failed: {error}") from error
        state = {"requestState": self._sent_back(result["requestState"])} if "requestState" in result else {}
        return {**({"inputResponses": responses} if responses else {}), **state}

    def _sent_back(self, value: Any) -> Any:
        """A value of the server for the next request. Raises MCPError for infinity, for example, which is no JSON."""
        try:
            encode({"value": value})
        except ValueError as error:
            raise self._error(f"it sent a value that cannot be sent back: {error}") from error
        return value

    async def _ping(self, waiter: AnyWaiter) -> None:
        await self._request(waiter, "server/discover" if revisions.is_modern(self.revision) else "ping", {})

    async def _list(self, waiter: AnyWaiter, limits: CallLimits | None = None) -> dict[str, Json]:
        """The tools by their names: as they were listed, if the server reports changes and has reported none."""
        session = self._ready_session()
        session.check_open()
        n_changes = session.n_tool_changes
        listed = self._tool_list
        if listed is not None and listed.n_changes == n_changes and self._is_fresh(listed):
            return listed.definitions
        begin_s, ttl_s = time.monotonic(), float("inf")  # The shortest time of all pages.
        definitions: dict[str, Json] = {}
        cursor: Any = None
        for _ in range(_MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._request(waiter, "tools/list", params, limits)
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise self._error("the result of tools/list has no list of tools")
            definitions.update((tool["name"], tool) for tool in tools if self._is_usable(tool))
            ttl_s = min(ttl_s, _ttl_s(page))
            cursor = self._sent_back(page.get("nextCursor") or None)
            if cursor is None:
                break
        else:
            raise self._error(f"its list of tools has more than {_MAX_PAGES} pages")
        self._tool_list = ToolList(definitions, begin_s + ttl_s, n_changes)
        return definitions

    def _is_fresh(self, listed: ToolList) -> bool:
        """Whether a list of tools may still be used if no change was reported.

        Since 2026-07-28: until the end of its time. Before: while reports of changes would be received.
        """
        if revisions.is_modern(self.revision):
            return time.monotonic() < listed.fresh_until
        return self._description.reports_tools and self._transport.is_listening

    def _is_usable(self, definition: Any) -> bool:
        """Whether a tool can be called. One that cannot is logged, and does not keep others from being used."""
        fields = definition if isinstance(definition, dict) else {}
        try:
            if not isinstance(fields.get("name"), str) or not isinstance(fields.get("inputSchema"), dict):
                raise ValueError("it has no name or no inputSchema")
            targets.json_schema(fields["inputSchema"])
            if self._is_stateless_http:
                check_marks(fields["inputSchema"])
            return True
        except (ValueError, TypeError, RecursionError) as error:
            shown = self._ready_session().shown
            log.warning("%s: the tool %s is left out: %s", self.name, shown(str(fields.get("name"))), shown(str(error)))
            return False

    @property
    def _is_stateless_http(self) -> bool:
        """Whether the server is at a URL and has a revision since 2026-07-28.

        Then calls repeat arguments in headers, and a request is cancelled by closing its connection.
        """
        return revisions.is_modern(self.revision) and isinstance(self._transport, HTTPTransport)

    async def _tools(self, waiter: AnyWaiter, names: Iterable[str], prefix: str) -> list[Tool]:
        definitions = await self._list(waiter)
        names = list(names)
        unknown = [name for name in names if name not in definitions]
        if unknown:
            known = self._ready_session().shown(", ".join(definitions) or "none")
            raise ValueError(f"{self.name} has no tool {', '.join(unknown)}; it has: {known}")
        tools: dict[str, Tool] = {}
        for name in names or definitions:
            fields = definitions[name]
            text = fields.get("description") or fields.get("title")
            tool_name = free_name(f"{prefix}{name}", tools)
            description = text if isinstance(text, str) else ""
            tools[tool_name] = Tool(tool_name, description, fields["inputSchema"], self._function(name))
        return list(tools.values())

    async def _call(
        self,
        waiter: AnyWaiter,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: Timeout | float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> MCPResult:
        params = {"name": name, "arguments": dict(arguments or {})}
        if on_progress is not None:
            check_callback("on_progress", on_progress)
        report = on_progress or (lambda progress: None)
        limits = self._limits(timeout)

        async def request() -> Json:
            headers = await self._argument_headers(waiter, params, limits)
            return await self._request(waiter, "tools/call", params, limits, headers, report)

        try:
            result = await request()
        except MCPError as error:
            if error.code != revisions.HEADER_MISMATCH or not self._is_stateless_http:
                raise
            self._tool_list = None  # The schema of the tool has changed: list it again for the right headers.
            result = await request()
        definition = {} if self._tool_list is None else self._tool_list.definitions.get(name, {})
        try:
            tool_result = read_result(result, self._media)
            if "outputSchema" in definition and not tool_result.is_error:
                _check_structured(definition["outputSchema"], tool_result)
        except ValueError as error:
            raise self._error(f"the result of {escaped(name)} is not valid: {error}") from error
        return tool_result

    async def _argument_headers(self, waiter: AnyWaiter, params: Json, limits: CallLimits) -> dict[str, str]:
        """The headers with arguments of a call, for which the tools must have been listed."""
        if not self._is_stateless_http:
            return {}
        definition = (await self._list(waiter, limits)).get(params["name"], {})
        return argument_headers(definition.get("inputSchema", {}), params["arguments"])

    def _error(self, reason: str) -> MCPError:
        return failure(self.name, reason)


class MCPServer(BaseMCPServer):
    """A server of the Model Context Protocol, a process or at a URL, whose tools a model can call.

        with MCPServer("npx", "-y", "@modelcontextprotocol/server-filesystem", ".") as files:
            print(client.run("What is in this folder?", tools=files.tools()))

    Entering the `with` block starts the server, leaving it ends it. Many threads can use it.

    Args:
        command: The program that is the server, or a URL, `https://host/mcp`.
        arguments: The arguments of the program.
        name: The name of the server in errors and in the log; default: that of the program or the host.
        env: Variables of its environment. It gets also PATH and HOME of this process, and no others.
        cwd: The working folder of the program.
        headers, proxy, verify: For a URL; see Client.
        timeout: A Timeout, or a number of seconds for each of its limits; `first` is for a result, `stall` for the time
            between two reports of progress, `total` for a whole call. Default: 120 s, 120 s and half an hour.
        media: What the model takes as results of tools, of "image" and "audio". A note stands for other media.
        on_request: Functions for requests of the server, by their methods: sampling/createMessage, elicitation/create,
            roots/list. Each gets the parameters and returns the result. Other requests are refused.
        revision: The revision of the protocol to begin with; default: the newest that the server supports.
    """

    def __enter__(self) -> Self:
        session = self._begin()
        try:
            run_blocking(self._start(Waiter(), session))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server: a process within some seconds, by force if it has to be; at a URL, the session."""
        if self._finalizer is not None:
            self._finalizer()

    def tools(self, *names: str, prefix: str = "") -> list[Tool]:
        """The tools of the server for `run`, `stream` and conversations; those of these names, or all.

        `prefix` is put before their names. Two tools of one name, of two servers, cannot be sent in one request.

        Raises:
            MCPError, TimedOut: The server did not list its tools.
            ValueError: There is no tool of one of these names.
        """
        return run_blocking(self._tools(Waiter(), names, prefix))

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout | float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> MCPResult:
        """Call a tool. A failure that the tool reports is a result with `is_error`.

        Raises:
            MCPError: The server returned an error, or what is no result, or it has ended.
            TimedOut: There was no result in time. The server is told that the call is cancelled.
        """
        return run_blocking(self._call(Waiter(), name, arguments, timeout, on_progress))

    def ping(self) -> None:
        """Return when the server responds. Raises MCPError or TimedOut."""
        run_blocking(self._ping(Waiter()))

    def _function(self, name: str) -> Callable[..., Any]:
        def call_tool(**arguments: Any) -> MCPResult:
            return self.call(name, arguments)

        return call_tool


def _close(transport: Transport, process_id: int) -> None:
    """End a server. A process that was forked from the one that started it leaves it alone."""
    if os.getpid() == process_id:
        transport.close()


def _check_structured(output_schema: Any, result: MCPResult) -> None:
    """Raise ValueError if structured content does not match the schema of the tool. A wrong schema is not used."""
    if not isinstance(output_schema, dict):
        return
    try:
        targets.build(output_schema, result.structured)
    except DoesNotFit as error:
        raise ValueError(f"the structured content does not match the outputSchema: {error}") from error
    except (ValueError, TypeError) as error:
        log.debug("an outputSchema is not used: %s", escaped(str(error)))
