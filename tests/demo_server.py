"""A server in this process with the built-in model on llama.cpp."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from localchat.serving.chat.model import Model
from localchat.serving.chat.service import Service
from localchat.serving.engine import Engine
from localchat.serving.http.http_server import ChatServer
from localchat.serving.http.settings import Settings
from localchat.serving.models.catalog import DEMO, DEMO_PATH, ModelFile

DEADLINE_S = 60


@contextlib.contextmanager
def serving_demo(engine: Engine, **settings: Any) -> Iterator[int]:
    """Serve an engine that has the built-in model; yields the port."""
    server = ChatServer(Service(ModelFile(DEMO_PATH, DEMO)), Settings(port=0, **settings))
    server.service.ready(Model(DEMO, engine))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.close()
        thread.join(DEADLINE_S)
