"""A plugin of pytest that pauses all threads but the main one, at random, as a busy machine does.

`python -m pytest -p tests.support.pauses tests/serving/http` finds assertions on the work of another thread that do not
wait for it. Each pause is before or after a thread uses a socket, sets an event or takes from a queue; one in thirty is
long. With PYTHONPATH=FOLDER, whose `sitecustomize.py` imports this module, child processes pause as well.
"""

import functools
import os
import queue
import random
import socket
import threading
import time
from typing import Any

PAUSE_S, LONG_PAUSE_S, LONG_SHARE = 0.01, 0.3, 1 / 30

_MAIN = threading.main_thread().ident
_chance = random.Random()


def pause() -> None:
    if threading.get_ident() != _MAIN:
        time.sleep(LONG_PAUSE_S if _chance.random() < LONG_SHARE else _chance.uniform(0, PAUSE_S))


def _with_pauses(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        pause()
        try:
            return original(*arguments, **options)
        finally:
            pause()

    setattr(owner, name, call)


for owner, names in (
    (socket.socket, "accept recv sendall shutdown close"),
    (socket.SocketIO, "readinto"),
    (threading.Event, "set"),
    (queue.Queue, "get"),
    (os, "write"),
):
    for name in names.split():
        _with_pauses(owner, name)
