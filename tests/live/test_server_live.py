"""The server with the built-in model: many clients at once, some of which disconnect, and the command."""

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localchat import server as server_module
from localchat.serving.core.params import NUMBERS
from localchat.serving.engine.engine import Engine
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.deadline import DEADLINE_S
from tests.support.exchanges import ask, exchange, opened
from tests.support.live import running_process
from tests.support.serving import raw_request, reset, wait_for, wait_until_idle

QUESTIONS = ("What is your name?", "What can you do?", "Count from 1 to 9.", "Hello!", "I am Ada. Who am I?")
ENDS = ("stop", "length")
CHAT = "/v1/chat/completions"


def greedy(question: str, **fields: Any) -> dict[str, Any]:
    """A greedy request with a length limit. No test depends on the text of the model or on its end."""
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60, **fields}


def finish_reason(port: int, **fields: Any) -> str:
    """The finish reason of a greedy completion with log probabilities."""
    _, body = ask(port, CHAT, greedy(QUESTIONS[0], logprobs=True, **fields))
    return str(body["choices"][0]["finish_reason"])


@pytest.mark.parametrize("name", NUMBERS)
def test_values_at_the_ends_of_their_ranges_are_accepted(port: int, name: str):
    """The ranges exclude the values at which llama.cpp aborts the process."""
    others = {"temperature": 1, "repeat_penalty": 1.1, "dry_multiplier": 1, "xtc_probability": 1, "top_p": 0.5}
    for value in (NUMBERS[name].low, NUMBERS[name].high):
        for mirostat in (0, 1, 2):
            assert finish_reason(port, **{**others, "max_tokens": 4, "mirostat": mirostat, name: value}) in ENDS


def test_all_tokens_banned_is_no_error(port: int, engine: Engine):
    never = [[token, False] for token in range(engine.facts.n_vocab)]
    for temperature in (0, 1):
        assert finish_reason(port, logit_bias=never, max_tokens=3, temperature=temperature) in ENDS


@pytest.mark.usefixtures("drafts_cost_nothing")
def test_server_speculates(port: int):
    """With the option that turns it off, the test of the options has no drafts."""

    def has_drafts() -> bool:
        _, body = ask(port, CHAT, greedy(QUESTIONS[0], logit_bias={"42": 100}))
        assert body["usage"]["completion_tokens"] == 60
        return bool(body["timings"].get("draft_n", 0) >= body["timings"].get("draft_n_accepted", 0) > 0)

    # While other programs use the cores, drafts may not pay.
    wait_for(has_drafts, DEADLINE_S)


def disconnect_early(port: int, request: bytes, chance: random.Random) -> None:
    """Send a request or its beginning, read a part of the response or nothing, and close or reset the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
        is_whole = chance.random() < 0.8
        sock.sendall(request if is_whole else request[: chance.randrange(len(request))])
        sock.settimeout(chance.uniform(0.001, 0.3))
        with contextlib.suppress(TimeoutError):
            for _ in range(chance.randrange(40)):
                if not sock.recv(chance.randrange(1, 400)):
                    break
        if chance.random() < 0.3:
            reset(sock)


def test_200_disconnects_at_random_moments_leave_no_sequence(port: int, engine: Engine):
    chance = random.Random(5)
    (end,) = engine.backend.tokenize(engine.facts.eos)
    threads_before = threading.active_count()

    def request() -> bytes:
        # Without its end-of-generation token, the model generates until the context is full.
        options = {"stream": chance.random() < 0.7, "n": chance.choice((1, 1, 2)), "logit_bias": {str(end): -100}}
        options["max_tokens"] = None
        path = CHAT
        if chance.random() < 0.3:
            # This prompt takes several steps.
            path, options = "/v1/completions", {**options, "prompt": "word " * 300, "echo": True}
        body = json.dumps(greedy(chance.choice(QUESTIONS), **options)).encode()
        return raw_request(body, "Connection: close", path=path)

    clients = [(request(), random.Random(i)) for i in range(200)]
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda client: disconnect_early(port, *client), clients))

    wait_for(lambda: threading.active_count() <= threads_before, DEADLINE_S)
    wait_until_idle(engine)
    assert finish_reason(port) in ENDS


# --- the command ---


PAGE = "https://page.example"
OPTIONS = f"""
    --alias Tiny --any-name --strict --allow-chat-template --keep-tools --thought-field --cors {PAGE} --api-key secret
    --default temperature=0 --default seed=7 --max-tokens 3 --reasoning-budget 0 --reasoning-budget-message Enough.
    --ctx 300 --parallel 2 --queue 1 --threads 1 --no-speculation
"""


def test_options_of_the_command_take_effect():
    """Each option changes a response."""
    key = {"Authorization": "Bearer secret"}
    messages = [{"role": "user", "content": "Count from 1 to 9."}]
    tool = {"type": "function", "function": {"name": "look_at_this"}}
    reasoning = {"role": "assistant", "content": "", "reasoning_content": "So"}
    continued = {"messages": [*messages, reasoning], "continue_final_message": "reasoning_content", "max_tokens": 20}
    with running_process(*OPTIONS.split()) as server:

        def post(path: str, **fields: Any) -> Any:
            return ask(server.port, path, {"messages": messages, **fields}, headers=key)[1]

        assert ask(server.port, "/v1/models")[0] == 401
        response, models = exchange(f"127.0.0.1:{server.port}", "/v1/models", headers={**key, "Origin": PAGE})
        props = ask(server.port, "/props", headers=key)[1]
        body = post(CHAT, model="any")
        too_many = post(CHAT, n=4)
        unknown = post(CHAT, frobnicate=1)
        shown = post("/apply-template", tools=[tool], tool_choice="none")
        rendered = post("/apply-template", chat_template="<{{ messages[0].content }}>")
        with_thought = post(CHAT, **continued)
        looped = post(CHAT, logit_bias={"42": 100}, max_tokens=60)
    assert response.getheader("Access-Control-Allow-Origin") == PAGE
    assert [(model["id"], model["meta"]["n_ctx"]) for model in models["data"]] == [("Tiny", 300)]
    assert str(DEMO_PATH.parent) not in json.dumps(props)
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["seed"], props["total_slots"]) == (0, 7, 2)
    assert (body["model"], body["usage"]["completion_tokens"]) == ("Tiny", 3)
    assert "accepts 3 at once" in too_many["error"]["message"]
    assert unknown["error"]["param"] == "frobnicate"
    assert "look_at_this" in shown["prompt"]
    assert rendered["prompt"] == "<Count from 1 to 9.>"
    assert with_thought["thought"] == "Enough."
    assert (looped["usage"]["completion_tokens"], "draft_n" in looped["timings"]) == (60, False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def health(port: int) -> int | None:
    """The status of /health; None: no server responds."""
    with contextlib.suppress(OSError):
        return ask(port, "/health")[0]
    return None


STUCK = """
import sys
from localchat import server
from localchat.serving.engine import process
process.COMMAND = [sys.executable, "-c", "import time; time.sleep(60)"]
sys.exit(server.main(["--port", sys.argv[1]]))
"""


def test_signal_ends_a_server_whose_model_still_loads():
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", STUCK, str(port)]) as process:
        try:
            wait_for(lambda: health(port) == 503, DEADLINE_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_second_signal_ends_the_process():
    long = {"ignore_eos": True, "max_tokens": 90_000, "repeat_penalty": 1.5}
    with (
        running_process("--drain", "60", "--ctx", "100000") as server,
        opened(f"127.0.0.1:{server.port}", CHAT, greedy("Hi", stream=True, **long)) as response,
    ):
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: health(server.port) != 200)
        # An immediate second signal counts as the same one, since systemd and `timeout` send it twice.
        server.process.send_signal(signal.SIGTERM)
        assert response.read(1000)
        time.sleep(server_module.ONE_SIGNAL_S)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_S) == -signal.SIGTERM
