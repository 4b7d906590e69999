"""The programs and libraries from PyPI."""

from pathlib import Path
from typing import Any

from tests.programs.program import Program, PyPIProgram

FOLDER = Path(__file__).parent
READ_NOTES = """
def read_notes(name: str) -> str:
    "Read a file of notes."
    return open(name).read()
"""

AIDER_COMMAND = ("aider", "--model", "openai/local", "--no-git", "--yes-always")
AIDER = PyPIProgram(
    name="aider",
    package="aider-chat",
    version="0.86.2",
    script="aider.sh",
    # Otherwise it sends more requests to other addresses.
    variables={
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    },
    ask=(*AIDER_COMMAND, "--message", "QUESTION"),
    ask_again=(*AIDER_COMMAND, "--restore-chat-history", "--message", "QUESTION"),
    too_long="possibly exhausted context window!",
)
GPTME_COMMAND = ("gptme", "--non-interactive", "--model", "local/local")
GPTME = PyPIProgram(
    name="gptme",
    package="gptme",
    version="0.35.1",
    script="openai.sh",
    variables={"GPTME_BREAK_ON_TOOLUSE": "false"},  # Otherwise it takes only the first call of a response.
    ask=(*GPTME_COMMAND, "QUESTION"),
    ask_again=(*GPTME_COMMAND, "--resume", "QUESTION"),
    call=("shell", {"command": "cat NAME"}),
)
LLM = PyPIProgram(
    name="llm",
    package="llm",
    version="0.36",
    files={"llm.yaml": ".config/io.datasette.llm/extra-openai-models.yaml"},
    ask=("llm", "--model", "local", "--functions", READ_NOTES, "QUESTION"),
    ask_again=("llm", "--continue", "QUESTION"),
    call=("read_notes", {"name": "NAME"}),
)


def library(name: str, package: str, version: str, *command: str) -> PyPIProgram:
    """A library, which a program of this folder uses. The program continues a conversation whenever there is one."""
    ask = ("python", str(FOLDER / command[0]), *command[1:], "QUESTION")
    call: tuple[str, dict[str, Any]] = ("read_notes", {"name": "NAME"})
    return PyPIProgram(name, package, version, ask, ask, script="openai.sh", call=call)


def open_webui(name: str, interface: str) -> PyPIProgram:
    """The backend, as the page of Open WebUI uses it. The models that it runs by itself, with 5 GB, are left out."""
    ask = ("python", str(FOLDER / "use_open_webui.py"), interface, "QUESTION")
    return PyPIProgram(
        name=name,
        package="open-webui",
        version="0.12.4",
        excluded=("torch",),
        script="open-webui.sh",
        # Without requests to other addresses.
        variables={
            "ENABLE_VERSION_UPDATE_CHECK": "false",
            "OFFLINE_MODE": "true",
            "RAG_EMBEDDING_ENGINE": "openai",
        },
        ask=ask,
        ask_again=ask,
        call=("read_notes", {"name": "NAME"}),
    )


PROGRAMS: tuple[Program, ...] = (
    AIDER,
    GPTME,
    LLM,
    library("langchain", "langchain[openai]", "1.5.0", "use_langchain.py", "chat"),
    library("langchain-responses", "langchain[openai]", "1.5.0", "use_langchain.py", "responses"),
    library("pydantic-ai", "pydantic-ai-slim[openai]", "2.68.0", "use_pydantic_ai.py", "openai-chat"),
    library("pydantic-ai-responses", "pydantic-ai-slim[openai]", "2.68.0", "use_pydantic_ai.py", "openai"),
    open_webui("open-webui", "chat"),
    open_webui("open-webui-responses", "responses"),
)
