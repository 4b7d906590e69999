"""`python use_open_webui.py QUESTION`: run the backend of Open WebUI, and ask a question as its page does.

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
from pathlib import Path
from typing import Any

CONVERSATION = Path("conversation.json")
TOOL = '''
class Tools:
    def read_notes(self) -> str:
        """Read the notes."""
        return open("notes.txt").read()
'''
START_S, RESPONSE_S, END_S = 90, 60, 10
# What the page lets the model generate after the first response.
TASKS = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}


class Backend:
    """A backend without accounts, with a database in the home folder."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"WEBUI_AUTH": "false", "DATA_DIR": str(Path.home() / "data"), "WEBUI_SECRET_KEY": "none"}
        command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen(command, env={**os.environ, **settings})
        self._url, self._token = f"http://127.0.0.1:{port}", ""

    def sign_in(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._token = self.send("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
                return
            except urllib.error.URLError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def send(self, path: str, body: Any = None) -> Any:
        """The response to a POST request with this body, or to a GET request without one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        with urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers), timeout=END_S) as response:
            return json.load(response)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def ask(backend: Backend, question: str) -> dict[str, Any]:
    """The response message, when it is whole."""
    state = json.loads(CONVERSATION.read_text("utf-8")) if CONVERSATION.exists() else {"chat_id": None, "messages": []}
    if not state["messages"]:
        tool = {"id": "notes", "name": "Notes", "content": TOOL, "meta": {"description": "Notes."}}
        backend.send("/api/v1/tools/create", tool)
    user_message: dict[str, Any] = {"id": str(uuid.uuid4()), "role": "user", "content": question, "models": ["local"]}
    user_message |= {"parentId": state.get("last_id"), "childrenIds": [], "timestamp": int(time.time())}
    id = str(uuid.uuid4())
    body = {
        **{"model": "local", "stream": True, "messages": [*state["messages"], {"role": "user", "content": question}]},
        **{"tool_ids": ["notes"], "background_tasks": TASKS, "session_id": str(uuid.uuid4())},
        **{"chat_id": state["chat_id"], "id": id, "parent_id": state.get("last_id"), "user_message": user_message},
    }
    chat_id = backend.send("/api/chat/completions", body)["chat_id"]
    deadline = time.monotonic() + RESPONSE_S
    while time.monotonic() < deadline:
        message = backend.send(f"/api/v1/chats/{chat_id}")["chat"]["history"]["messages"][id]
        if message.get("done"):
            messages = [*body["messages"], {"role": "assistant", "content": message["content"]}]
            CONVERSATION.write_text(json.dumps({"chat_id": chat_id, "messages": messages, "last_id": id}), "utf-8")
            return message
        time.sleep(0.1)
    raise TimeoutError(f"the response is not whole after {RESPONSE_S} s: {message}")


backend = Backend()
try:
    backend.sign_in()
    print(json.dumps(ask(backend, sys.argv[1])))
finally:
    backend.end()
