"""The programs and libraries from PyPI."""

from pathlib import Path
from typing import Any

from tests.programs.program import Program, PyPIProgram

FOLDER = Path(__file__).parent
READ_NOTES = '''
def read_notes() -> str:
    "Read the notes."
    return open("notes.txt").read()
'''

AIDER_COMMAND = ("aider", "--model", "openai/local", "--no-git", "--yes-always")
AIDER = PyPIProgram(
    name="aider",
    package="aider-chat",
    version="0.86.2",
    script="aider.sh",
    ask=(*AIDER_COMMAND, "--message", "QUESTION"),
    ask_again=(*AIDER_COMMAND, "--restore-chat-history", "--message", "QUESTION"),
)
GPTME_COMMAND = ("gptme", "--non-interactive", "--model", "local/local", "--tool-format", "tool")
GPTME = PyPIProgram(
    name="gptme",
    package="gptme",
    version="0.35.1",
    script="openai.sh",
    ask=(*GPTME_COMMAND, "QUESTION"),
    ask_again=(*GPTME_COMMAND, "--resume", "QUESTION"),
    call=("shell", {"command": "cat notes.txt"}),
)
LLM = PyPIProgram(
    name="llm",
    package="llm",
    version="0.36",
    files={"llm.yaml": ".config/io.datasette.llm/extra-openai-models.yaml"},
    ask=("llm", "--model", "local", "--functions", READ_NOTES, "QUESTION"),
    ask_again=("llm", "--continue", "QUESTION"),
    call=("read_notes", {}),
)


def library(name: str, package: str, version: str, *command: str) -> PyPIProgram:
    """A library, which a program of this folder uses. The program continues a conversation whenever there is one."""
    ask = ("python", str(FOLDER / command[0]), *command[1:], "QUESTION")
    call: tuple[str, dict[str, Any]] = ("read_notes", {})
    return PyPIProgram(name, package, version, ask, ask, script="openai.sh", call=call)


LANGCHAIN = library("langchain", "langchain[openai]", "1.5.0", "use_langchain.py", "chat")
LANGCHAIN_RESPONSES = library("langchain-responses", "langchain[openai]", "1.5.0", "use_langchain.py", "responses")
PYDANTIC_AI = library("pydantic-ai", "pydantic-ai-slim[openai]", "2.68.0", "use_pydantic_ai.py", "openai-chat")
PYDANTIC_AI_RESPONSES = library(
    "pydantic-ai-responses", "pydantic-ai-slim[openai]", "2.68.0", "use_pydantic_ai.py", "openai"
)
# Its backend. Without the models that it runs by itself, which need 6 GB.
OPEN_WEBUI = PyPIProgram(
    name="open-webui",
    package="open-webui",
    version="0.12.4",
    python=("3.12", "3.11"),
    excluded=("torch",),
    script="open-webui.sh",
    variables={"OFFLINE_MODE": "true", "RAG_EMBEDDING_ENGINE": "openai", "ENABLE_VERSION_UPDATE_CHECK": "false"},
    ask=("python", str(FOLDER / "use_open_webui.py"), "QUESTION"),
    ask_again=("python", str(FOLDER / "use_open_webui.py"), "QUESTION"),
    call=("read_notes", {}),
)

PROGRAMS: tuple[Program, ...] = (
    *(AIDER, GPTME, LLM, LANGCHAIN, LANGCHAIN_RESPONSES, PYDANTIC_AI, PYDANTIC_AI_RESPONSES, OPEN_WEBUI),
)
