"""python -m bench.tokens: the processor time that the server's own process takes for each token of plain text.

The engine process and the clients are other processes, whose time does not count. "alone" is the code from the message
of the engine process to the sockets, without an engine that computes beside it on the same cores and caches.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable
from email.message import Message
from types import SimpleNamespace
from typing import Any, NoReturn

from localchat.serving.api.chat import ChatEncoder, ChatRequest
from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.runs.generation import GenerationRun, Output
from localchat.serving.engine.process import EngineProcess
from localchat.serving.engine.values import GenerationRequest, StepOutput, Submitted, TokenTexts
from localchat.serving.http.exchange import Exchange
from localchat.serving.http.stream import CHAT, Stream, send_output
from localchat.serving.loading.options import Options
from localchat.serving.models.model_file import DEMO_PATH

from .measure import Round, first_model, run_load
from .serve import PROMPTS
from .servers import commands, running

N_TOKENS = 200


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tokens", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(DEMO_PATH), help="a model file (default: the built-in model)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="loads to run (default: 1 16 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load")
    options = parser.parse_args(arguments)
    for n_streams in options.streams:
        spent = [alone(n_streams) for _ in range(options.rounds)]
        print(f"{n_streams:3} streams: {statistics.median(spent) * 1e6:.1f} us for each token, alone")
    command = commands(options.model, max(options.streams), 0, 0)["localchat"]
    with running("localchat", command) as server:
        common = {"model": first_model(server.url), "stream": True, "temperature": 1, "ignore_eos": True}
        load = [{**common, "max_tokens": N_TOKENS, "messages": [{"role": "user", "content": text}]} for text in PROMPTS]
        run_load(server.url, load, 1, 1)  # Warm up.
        for n_streams in options.streams:
            n_tokens, spent = 2 * n_streams * N_TOKENS, []
            rounds: list[Round] = []
            for _ in range(options.rounds):
                before = processor_s(server.pid)
                rounds.append(run_load(server.url, load, n_streams, 2))
                spent.append((processor_s(server.pid) - before) / n_tokens)
            rate = statistics.median(n_tokens / one.wall_s for one in rounds)
            print(
                f"{n_streams:3} streams: {statistics.median(spent) * 1e6:.1f} us for each token, {rate:,.0f} tokens/s"
            )


def processor_s(pid: int) -> float:
    """The processor time of a process so far, in user and system mode: Linux has a clock for each process."""
    return time.clock_gettime((~pid << 3) | 2)


def alone(n_streams: int) -> float:
    """The seconds for each token of a thread that gets messages with a token of each stream, and writes to sockets that
    another process reads."""
    receiver = EngineProcess.__new__(EngineProcess)  # Without a process.
    receiver._requests = {}
    with contextlib.ExitStack() as closing, socket.create_server(("127.0.0.1", 0), backlog=n_streams) as listener:
        reader = os.fork()
        if not reader:
            read_all(listener.getsockname(), n_streams)
        for id in range(n_streams):
            sock = closing.enter_context(listener.accept()[0])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receiver._requests[id] = start_stream(sock), {0}
        spent = 0.0
        for token in range(N_TOKENS):
            outputs = [(id, 0, time.perf_counter(), [token], None, None, None, 0, 0) for id in receiver._requests]
            message = pickle.dumps(("step", outputs))
            started_at = time.thread_time()
            receiver._receive(*pickle.loads(message))
            spent += time.thread_time() - started_at if token else 0  # The first one wakes a thread for each stream.
            time.sleep(0.002 if token else 0.5)
        for deliver, _ in receiver._requests.values():
            deliver(StepOutput(0, 0.0, end="length"))
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
    os.waitpid(reader, 0)
    return spent / ((N_TOKENS - 1) * n_streams)


def read_all(address: Any, n_streams: int) -> NoReturn:
    """Read streams to their ends, as clients do, and exit."""
    with selectors.DefaultSelector() as selector:
        for _ in range(n_streams):
            selector.register(socket.create_connection(address), selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                sock = key.fileobj
                if isinstance(sock, socket.socket) and not sock.recv(65536):
                    selector.unregister(sock)
    os._exit(0)


def start_stream(sock: socket.socket) -> Callable[[StepOutput], None]:
    """Start a stream of the chat interface. Returns the function that gets its output."""
    texts = TokenTexts([f"word{i} ".encode() for i in range(N_TOKENS)], frozenset(), frozenset())
    delivers: list[Callable[[StepOutput], None]] = []

    def submit(requests: object, deliver: Callable[[StepOutput], None], check: object) -> Submitted:
        delivers.append(deliver)
        return Submitted([0], [1], [[]])

    model: Any = SimpleNamespace(name="model", engine=SimpleNamespace(submit=submit, cancel=print))
    output = Output(GenerationRequest((1,)), texts, OutputParser(DIALECTS["hermes"]))
    run = GenerationRun(model, [output], "id-", n_each=1, prompt_field="messages")
    request = ChatRequest(messages=({"role": "user", "content": "x"},), stream=True)
    incoming: Any = SimpleNamespace(socket=sock)
    exchange = Exchange("POST", "/v1/chat/completions", "HTTP/1.1", Message(), incoming, Options())
    stream = Stream(exchange, CHAT, 0)
    arguments = exchange, run, ChatEncoder(run.head, request, run.usage), stream, lambda: None
    threading.Thread(target=send_output, args=arguments).start()
    return delivers[0]


if __name__ == "__main__":
    main()
