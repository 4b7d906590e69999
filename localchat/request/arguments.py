"""The options of one call, checked: those of the client apart from the fields of the request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..transport.call import Call, CallOptions
from ..transport.settings import Settings, check_headers
from ..transport.timeouts import Timeout, TotalDeadline
from .models import default_model
from .options import check_options, without_none


def with_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for several requests: a generator, which the first request would use up, becomes a list."""
    options = without_none(options)
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in options.items()}


class BaseRequest:
    """The options of one call of a method. Raises TypeError for an unknown one, ValueError for a wrong value.

    Args:
        settings: The settings of the client.
        options: The keyword arguments of the call.
        method: The name of the method, a key of `OPTIONS_OF`.
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any], method: str) -> None:
        check_options(options, method)
        # Becomes the fields of the request: options that are no fields of it are removed here and in subclasses.
        self.fields = fields = without_none(options)
        timeout = Timeout.of(fields.pop("timeout", settings.timeout))
        max_retries: int = fields.pop("max_retries", settings.max_retries)
        headers: Mapping[str, str] = fields.pop("extra_headers", {})
        check_headers(headers)
        self.call_options = CallOptions(timeout, TotalDeadline(timeout.total), max_retries, headers)
        # These fields replace others of the same name.
        self.extra_body: Mapping[str, Any] = fields.pop("extra_body", {})
        # Whether the options name the model, or say by a None in `extra_body` that none is sent: then no default is
        # looked up.
        self.names_model = fields.get("model") is not None or "model" in self.extra_body
        self._model: str | None = fields.pop("model", None)

    def check_extra_body(self, name: str) -> None:
        """Raise ValueError if `extra_body` has the field of this name, which is the first argument of the method."""
        if name in self.extra_body:
            raise ValueError(f"the field {name} is the first argument: leave it out of extra_body")

    async def model(self, call: Call) -> str | None:
        """The model of the options, of the client, or the only one of the server.

        None if `extra_body` says so, or if the server has no list of models.
        """
        if not self.names_model:
            return await default_model(call)
        model: str | None = self.extra_body.get("model", self._model)
        return model

    def share_total(self, first: BaseRequest) -> None:
        """Let this request end with the total timeout of an earlier request of the same call."""
        self.call_options = self.call_options._replace(total=first.call_options.total)
