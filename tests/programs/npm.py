"""The programs from npm."""

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
# It continues a conversation only on a terminal.
CLINE = NpmProgram(
    name="cline",
    package="cline",
    version="3.0.65",
    files={"cline.json": ".cline/data/settings/providers.json"},
    ask=("cline", "QUESTION"),
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

PROGRAMS: tuple[Program, ...] = (CODEX, OPENCODE, QWEN_CODE, CLINE, CONTINUE)
