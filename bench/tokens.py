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
from email.message import Message
from types import SimpleNamespace
from typing import Any, NoReturn

from localchat.serving.api.chat import ChatEncoder
from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.runs.generation import GenerationRun
from localchat.serving.chat.runs.output_reader import OutputReader
from localchat.serving.core.request import ChatRequest
from localchat.serving.core.server_options import Options
from localchat.serving.engine.engine_client import EngineClient
from localchat.serving.engine.values import End, SequenceRequest, StepOutput, TokenizedPrompts, TokenTexts
from localchat.serving.http.clients import ClientMailboxes
from localchat.serving.http.exchange import Exchange
from localchat.serving.http.stream import CHAT, Stream, send_output
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
    command = commands(options.model, max(options.streams), 0)["localchat"]
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


class RecordedEngine(EngineClient):
    """The client of an engine that does not exist: its messages come from this program."""

    def __init__(self) -> None:
        super().__init__(lambda message: None)
        self.texts = TokenTexts([f"word{i} ".encode() for i in range(N_TOKENS)], frozenset(), frozenset())
        self.max_open = 1024

    def stop(self) -> None: ...

    def close(self) -> None: ...


def alone(n_streams: int) -> float:
    """The seconds for each token of the threads of a server that gets messages with a token of each stream, and writes
    to sockets that another process reads."""
    engine = RecordedEngine()
    with (
        contextlib.closing(ClientMailboxes()) as clients,
        contextlib.ExitStack() as closing,  # Before the clients, whose end waits for that of the reader.
        socket.create_server(("127.0.0.1", 0), backlog=n_streams) as listener,
    ):
        reader = os.fork()
        if not reader:
            read_all(listener.getsockname(), n_streams)
        threads: list[threading.Thread] = []
        for _ in range(n_streams):
            sock = closing.enter_context(listener.accept()[0])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threads.append(threading.Thread(target=stream, args=(engine, clients, sock)))
            threads[-1].start()
        while engine.n_requests < n_streams:
            time.sleep(0.01)
        ids = range(n_streams)
        engine.receive([("output", id, TokenizedPrompts([1], [[]])) for id in ids])
        spent = 0.0
        for token in range(N_TOKENS):
            message = pickle.dumps([("steps", [(id, 0, time.perf_counter(), [token], None, None, 0, 0) for id in ids])])
            started_at = time.process_time()
            engine.receive(pickle.loads(message))
            time.sleep(0.002 if token else 0.5)
            spent += time.process_time() - started_at if token else 0  # The first one begins the responses.
        end = StepOutput(0, 0.0, end=End("length"))
        engine.receive([("steps", [(id, *end) for id in ids]), *(("ended", id, None) for id in ids)])
        for thread in threads:
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


def stream(engine: EngineClient, clients: ClientMailboxes, sock: socket.socket) -> None:
    """Stream a response of the chat interface."""
    model: Any = SimpleNamespace(name="model", engine=engine)
    output = OutputReader(SequenceRequest((1,)), engine.texts, OutputParser(DIALECTS["hermes"]))
    request = ChatRequest(messages=({"role": "user", "content": "x"},), stream=True)
    incoming: Any = SimpleNamespace(socket=sock)
    exchange = Exchange("POST", "/v1/chat/completions", "HTTP/1.1", Message(), incoming, Options())
    response = Stream(exchange, CHAT, 0)
    with clients.mailbox_of(exchange, response) as mailbox:
        run = GenerationRun(model, [output], "id-", mailbox, n_each=1, prompt_field="messages")
        send_output(exchange, run, ChatEncoder(run.head, request, run.usage), response)


if __name__ == "__main__":
    main()
