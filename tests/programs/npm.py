"""The programs from npm."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.programs.program import NpmProgram, Program

CODEX = NpmProgram(
    name="codex",
    package="@openai/codex",
    version="0.171.0",
    files={"codex.toml": ".codex/config.toml"},
    ask=("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "QUESTION"),
    ask_again=("codex", "exec", "resume", "--last", "--skip-git-repo-check", "QUESTION"),
    call=("exec_command", {"cmd": "cat NAME"}),
    too_long="ran out of room",
)
OPENCODE = NpmProgram(
    name="opencode",
    package="opencode-ai",
    version="1.18.33",
    files={"opencode.json": ".config/opencode/opencode.json"},
    ask=("opencode", "run", "QUESTION"),
    ask_again=("opencode", "run", "--continue", "QUESTION"),
    call=("read", {"filePath": "FOLDER/NAME"}),
)
QWEN_CODE = NpmProgram(
    name="qwen-code",
    package="@qwen-code/qwen-code",
    version="0.24.4",
    script="qwen-code.sh",
    ask=("qwen", "--approval-mode", "yolo", "--prompt", "QUESTION"),
    ask_again=("qwen", "--approval-mode", "yolo", "--continue", "--prompt", "QUESTION"),
    call=("read_file", {"file_path": "FOLDER/NAME"}),
)
CLINE = NpmProgram(
    name="cline",
    package="cline",
    version="3.0.65",
    files={"cline.json": ".cline/data/settings/providers.json"},
    ask=("cline", "QUESTION"),
    ask_again=(sys.executable, str(Path(__file__).with_name("use_cline.py")), "QUESTION"),
    call=("read_files", {"path": "NAME"}),
)
CONTINUE = NpmProgram(
    name="continue",
    package="@continuedev/cli",
    version="1.5.47",
    files={"continue.yaml": ".continue/config.yaml"},
    ask=("cn", "--print", "QUESTION"),
    ask_again=("cn", "--print", "--resume", "QUESTION"),
    call=("Read", {"filepath": "NAME"}),
)


def other(program: NpmProgram, interface: str, replaced: Mapping[str, str], **fields: Any) -> NpmProgram:
    """The program with another interface of the server, for which texts in its configuration are replaced."""
    return replace(program, name=f"{program.name}-{interface}", replaced=replaced, **fields)


SDK, V1 = "@ai-sdk/openai-compatible", "http://127.0.0.1:8080/v1"
MESSAGES = {"too_long": "prompt is too long"}
PROGRAMS: tuple[Program, ...] = (
    CODEX,
    OPENCODE,
    other(OPENCODE, "messages", {SDK: "@ai-sdk/anthropic"}, **MESSAGES),
    other(OPENCODE, "responses", {SDK: "@ai-sdk/openai"}),
    QWEN_CODE,
    CLINE,
    other(CLINE, "ollama", {"openai-compatible": "ollama", V1: V1.removesuffix("/v1")}),
    CONTINUE,
    other(CONTINUE, "messages", {"provider: openai": "provider: anthropic", V1: f"{V1}/"}, **MESSAGES),
)
