"""`python use_open_webui.py chat|responses QUESTION`: run Open WebUI's backend, and ask a question as its page does.

It continues the conversation of the last run, which is in the database of the backend.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CONVERSATION = Path("conversation.json")
TOOL = '''
class Tools:
    def read_notes(self, name: str) -> str:
        """Read a file of notes."""
        return open(name).read()
'''
# Time limits.
START_S, SEND_S, RESPONSE_S, END_S = 120, 30, 160, 10
# What the page lets the model generate after the first response.
TASKS = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}


class Backend:
    """A backend without accounts, with a database in the home folder."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"WEBUI_AUTH": "false", "DATA_DIR": str(Path.home() / "data"), "WEBUI_SECRET_KEY": 32 * "0"}
        command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen(command, env={**os.environ, **settings})
        self._url, self._token = f"http://127.0.0.1:{port}", ""

    def sign_in(self) -> None:
        """Sign in as the administrator, as soon as the backend is ready."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._token = self.send("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
                return
            except urllib.error.URLError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def configure(self, interface: str) -> None:
        """Check the connection, name its model, and create the tool."""
        connections = self.send("/openai/config")
        url, key = connections["OPENAI_API_BASE_URLS"][0], connections["OPENAI_API_KEYS"][0]
        self.send("/openai/verify", {"url": url, "key": key})
        connection = {"enable": True, "model_ids": ["local"]}
        if interface == "responses":
            connection["api_type"] = interface
        self.send("/openai/config/update", {**connections, "OPENAI_API_CONFIGS": {"0": connection}})
        self.send(
            "/api/v1/tools/create",
            {"id": "notes", "name": "Notes", "content": TOOL, "meta": {"description": "Notes."}},
        )

    def send(self, path: str, body: Any = None) -> Any:
        """The response to a POST request with this body, or to a GET request without one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=SEND_S) as response:
            return json.load(response)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


@dataclass
class Conversation:
    """A chat of the backend, which a file keeps between two runs."""

    chat_id: str | None = None  # None: the backend has no chat yet.
    last_id: str | None = None  # Of the last response.
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, backend: Backend, question: str) -> dict[str, Any]:
        """The response message, when it is whole."""
        self.messages.append({"role": "user", "content": question})
        user_message = {"id": str(uuid.uuid4()), **self.messages[-1], "parentId": self.last_id, "childrenIds": []}
        parent_id, self.last_id = self.last_id, str(uuid.uuid4())
        message = {
            "model": "local",
            "stream": True,
            "messages": self.messages,
            "tool_ids": ["notes"],
            "background_tasks": TASKS,
            "session_id": str(uuid.uuid4()),
            "chat_id": self.chat_id,
            "id": self.last_id,
            "parent_id": parent_id,
            "user_message": {**user_message, "models": ["local"], "timestamp": int(time.time())},
        }
        self.chat_id = backend.send("/api/chat/completions", message)["chat_id"]
        deadline = time.monotonic() + RESPONSE_S
        while time.monotonic() < deadline:
            chat = backend.send(f"/api/v1/chats/{self.chat_id}")["chat"]
            response: dict[str, Any] = chat["history"]["messages"][self.last_id]
            if response.get("done"):
                self.messages.append({"role": "assistant", "content": response["content"]})
                return response
            time.sleep(0.1)
        raise TimeoutError(f"after {RESPONSE_S} s the response is {response}")


interface, question = sys.argv[1:]
backend = Backend()
try:
    backend.sign_in()
    if CONVERSATION.exists():
        conversation = Conversation(**json.loads(CONVERSATION.read_text(encoding="utf-8")))
    else:
        backend.configure(interface)
        conversation = Conversation()
    print(json.dumps(conversation.ask(backend, question)))
    CONVERSATION.write_text(json.dumps(asdict(conversation)), encoding="utf-8")
except urllib.error.HTTPError as error:
    sys.exit(f"{error.url}: {error.code} {error.read().decode()}")
finally:
    backend.end()
