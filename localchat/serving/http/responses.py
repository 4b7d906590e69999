"""The endpoints of the Responses API: responses and conversations."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

from ..api.responses import ResponsesRequest, parse_response, with_own_field_names
from ..api.responses_events import ResponseEncoder
from ..api.responses_items import input_items
from ..api.responses_store import ResponseStore, items_body
from ..chat.chat_prompt import prepare_chat
from ..chat.model import Model
from ..chat.run import GenerationRun, start
from ..chat.service import Service
from ..core import errors
from ..core.fields import parse_body
from . import sse
from .endpoints import Endpoints, Table
from .exchange import Exchange
from .stream import StreamFormat, encode_named, send_stream, send_whole

STREAM = StreamFormat("text/event-stream", encode_named, None, sse.COMMENT)


class Responses:
    """Creates, stores and returns responses."""

    def __init__(self, service: Service, endpoints: Endpoints, *, strict: bool) -> None:
        self._service = service
        self._endpoints = endpoints
        self._strict = strict
        self._store = ResponseStore()

    def table(self) -> Table:
        return {
            "/responses": {"POST": self._create},
            "/responses/": {
                "GET": partial(self._get, "response", "input_items"),
                "DELETE": partial(self._delete, "response", "response"),
            },
            "/conversations": {"POST": self._create_conversation},
            "/conversations/": {
                "GET": partial(self._get, "conversation", "items"),
                "DELETE": partial(self._delete, "conversation", "conversation.deleted"),
            },
        }

    def _create(self, exchange: Exchange) -> None:
        request = parse_response(exchange.body(), self._store, strict=self._strict)
        self._endpoints.log_unknown_fields(request.unknown)
        exchange.name_request(request.request_id)
        model = self._service.resolve(request.model)
        with self._endpoints.compiling(exchange):
            run = _submitted(model, request)
        with run, self._endpoints.generating(exchange, run):
            sampling = {**vars(model.sampling), **request.params.sampling}
            encoder = ResponseEncoder(run.head, request, sampling, run.usage, partial(self._save, request))
            if request.stream:
                send_stream(exchange, run, encoder, self._endpoints.ping_s(request), STREAM)
            else:
                send_whole(exchange, run, encoder)

    def _save(self, request: ResponsesRequest, response: dict[str, Any]) -> None:
        if request.is_stored:
            self._store.put(response, request.earlier, request.items)
        if request.conversation_id is not None:
            self._store.extend(request.conversation_id, request.items, response["output"], response["id"])

    def _get(self, kind: str, items_name: str, exchange: Exchange) -> None:
        """Send a response or conversation, or its items if the path ends in `items_name`."""
        id, _, rest = exchange.tail.partition("/")
        entry = self._store.get(id, kind)
        if rest == items_name:
            exchange.send_json(200, items_body((*entry.earlier, *entry.items)))
        elif rest:
            raise errors.UnknownPath(f"there is nothing at {exchange.head.path}: a {kind} has only '{items_name}'")
        else:
            exchange.send_json(200, entry.body)

    def _delete(self, kind: str, deleted: str, exchange: Exchange) -> None:
        """Delete a response or conversation. `deleted` is the object type of the result."""
        self._store.delete(exchange.tail, kind)
        exchange.send_json(200, {"id": exchange.tail, "object": deleted, "deleted": True})

    def _create_conversation(self, exchange: Exchange) -> None:
        body = parse_body(exchange.body())
        metadata = body.object("metadata")
        id = "conv_" + uuid.uuid4().hex
        created = {"id": id, "object": "conversation", "created_at": int(time.time())}
        created["metadata"] = dict(metadata.raw) if metadata else {}
        self._store.put(created, (), input_items(body, "items"))
        exchange.send_json(200, created)


def _submitted(model: Model, request: ResponsesRequest) -> GenerationRun:
    """Submit the request. If `truncates` is set, drop its oldest turns until the prompt fits into the context.

    Raises:
        ApiError: The request cannot run. The error has the field names of this interface.
    """
    try:
        while True:
            try:
                return start(model, request, prepare_chat, "resp_")
            except errors.ContextLengthExceeded:
                shorter = request.shortened() if request.truncates else None
                if shorter is None:
                    raise
                request = shorter
    except errors.ApiError as error:
        raise with_own_field_names(error, request) from error
