"""The requests of servers that the program has functions for: sampling, elicitation, roots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .messages import Json

# A function that gets the `params` of a request of the server, and returns the result of the specification.
RequestFunction = Callable[[Json], Any]

# The requests that a server may make, each with the capability that a client declares for it.
_CAPABILITIES = {
    "elicitation/create": "elicitation",
    "roots/list": "roots",
    "sampling/createMessage": "sampling",
}


class UnsupportedRequest(ValueError):
    """A request of a server has a variant that the client does not declare."""


class ClientFeatures:
    """The functions for requests of a server. Raises ValueError for one that is not named in the specification."""

    def __init__(self, functions: Mapping[str, RequestFunction] | None) -> None:
        self.functions = dict(functions or {})
        for method, function in self.functions.items():
            if method not in _CAPABILITIES:
                known = ", ".join(_CAPABILITIES)
                raise ValueError(f"on_request has functions for {known}, not for {method!r}")
            if not callable(function):
                raise TypeError(f"on_request[{method!r}] is a function, not {function!r}")

    @property
    def coroutine_functions(self) -> list[str]:
        """The methods whose functions must be awaited."""
        return [method for method, function in self.functions.items() if inspect.iscoroutinefunction(function)]

    @property
    def capabilities(self) -> Json:
        """What the client declares. A server must not request anything else."""
        return {_CAPABILITIES[method]: {} for method in self.functions}

    def answer(self, method: str, params: Json) -> Json:
        """The result of a request. Raises what the function raises, and TypeError for a result that is no object.

        Raises UnsupportedRequest for what the declared capabilities do not include: elicitation at a URL, sampling
        with tools.
        """
        if method == "elicitation/create" and params.get("mode", "form") != "form":
            raise UnsupportedRequest("this client has no elicitation in other modes than form")
        if method == "sampling/createMessage" and not params.keys().isdisjoint(("tools", "toolChoice")):
            raise UnsupportedRequest("this client has no sampling with tools")
        result = self.functions[method](params)
        if not isinstance(result, dict):
            raise TypeError(f"the function for {method} returns a dict, not {result!r:.100}")
        if method == "elicitation/create" and result.get("action") == "accept":
            content = result.get("content") or {}
            if not isinstance(content, dict):
                raise TypeError(f"the content of {method} is a dict, not {content!r:.100}")
            return {**result, "content": {**_defaults(params.get("requestedSchema")), **content}}
        return result


def _defaults(schema: Any) -> Json:
    """The default values of a form, which stand for the fields that were not filled in."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    fields = properties.items() if isinstance(properties, dict) else ()
    return {name: field["default"] for name, field in fields if isinstance(field, dict) and "default" in field}
