"""The docs are right: code blocks run against the built-in model, tables are those of the code, named tests exist."""

import json
import re
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import localchat
from localchat.__main__ import make_parser
from localchat.mcp.server import DEFAULT_TIMEOUT
from localchat.request import options
from localchat.serving.api import chat, embeddings
from localchat.serving.core.fields import Fields
from localchat.serving.core.model_options import SETTINGS
from localchat.serving.core.params import NUMBERS, UNSUPPORTED, WITHOUT_EFFECT, SamplingParams
from localchat.serving.core.server_options import GROUPS
from localchat.serving.http.status_endpoints import chat_page
from tests.programs.catalog import PROGRAMS
from tests.project.test_imports import MAY_IMPORT
from tests.support.documents import ROOT, code_blocks, run_program, with_address

README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "bench").glob("*.md")])
RUNNABLE = (README, *(DOCS / f"{name}.md" for name in ("install", "server", "models", "client", "errors", "terminal")))
BLOCKS = [(language, code) for page in RUNNABLE for language, code in code_blocks(page) if language != "text"]
TOOLS, CLIENTS = (code_blocks(DOCS / name) for name in ("tools.md", "clients.md"))


def first_lines(blocks: list[tuple[str, str]]) -> list[str]:
    """The ids of the tests of these blocks."""
    return [code.strip().splitlines()[0][:50] for _, code in blocks]


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=first_lines(BLOCKS))
def test_block_runs(language: str, code: str, base_url: str, tmp_path: Path):
    """With this interpreter and this server; `make` only prints its commands."""
    code = with_address(code, base_url)
    if language == "python":
        if "openai" in code:
            pytest.importorskip("openai", reason="no release for this Python")
        assert run_program([sys.executable, "-W", "error", "-c", code], base_url, tmp_path).stdout.strip()
        return
    assert language == "sh"
    for line in code.splitlines():
        folder = ROOT if line.startswith("make ") else tmp_path
        line = re.sub(r"(\.venv/bin/|^)python ", f"{sys.executable} ", re.sub("^make ", "make --dry-run ", line))
        assert run_program(["sh", "-c", line], base_url, folder).stdout.strip()


# A part of the output of each block of tools.md with the built-in model.
SHOWN = ["Bonn", "ask the user", "add {'a': 17, 'b': 25}", "[add gave 42]", "on the Rhine", "42 ", "Ada 37\n36\n"]
SHOWN += ["supports only text", "Hello! How can I help you?", "2 256"]


@pytest.mark.parametrize(("code", "shown"), [(code, shown) for (_, code), shown in zip(TOOLS, SHOWN)], ids=SHOWN)
def test_block_about_tools_runs(code: str, shown: str, base_url: str, tmp_path: Path):
    assert len(TOOLS) == len(SHOWN)
    assert shown in run_program([sys.executable, "-W", "error", "-c", code], base_url, tmp_path).stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples/configuration").iterdir()), ids=lambda path: path.name)
def test_configuration_of_a_program_is_that_of_the_docs(path: Path):
    """In a file of JSON, the docs may have the lines between its brackets."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(("#", "{", "}"))]
    assert any("\n".join(lines) in code for _, code in CLIENTS)


@pytest.mark.parametrize("code", [code for _, code in CLIENTS], ids=first_lines(CLIENTS))
def test_configuration_is_in_a_tested_file(code: str):
    assert any(code in path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "configuration").iterdir())


def named_in(page: Path) -> set[str]:
    """The words of all code in a page."""
    text = page.read_text(encoding="utf-8")
    return set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))))


def test_public_names_are_in_the_docs():
    assert set(localchat.__all__) <= named_in(DOCS / "client.md") | named_in(DOCS / "errors.md")


def test_environment_variables_are_in_the_docs():
    """Those that the package reads, not those that it only sets."""
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "localchat").rglob("*.py"))
    names = re.findall(r'(?<!setdefault\()"((?:LOCALCHAT|OPENAI|LLAMA|OLLAMA|XDG|HF|HUGGINGFACE)_[A-Z_]+)"', sources)
    assert {"LOCALCHAT_API_KEY", "OLLAMA_MODELS"} <= set(names) <= set().union(*map(named_in, PAGES))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_names_of_the_code_exist(page: str):
    """Except functions of llama.cpp."""
    files = [path for folder in ("localchat", "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    sources = "\n".join(path.read_text("utf-8") for path in files if path != Path(__file__))
    known = {*re.findall(r"\w+", sources), *(path.stem for path in files)}
    names = re.findall(r"`([A-Za-z_]\w*(?:\.[a-z_]\w*)*)(?:\(\))?`", (ROOT / page).read_text(encoding="utf-8"))
    words = {word for name in names if not name.startswith(("llama_", "NAME")) for word in name.split(".")}
    assert words - known == set()


def test_names_in_the_tables_are_public():
    pages = [(DOCS / f"{name}.md").read_text("utf-8") for name in ("client", "errors")]
    named = re.findall(r"^\| `([A-Z]\w+)` \|", "\n".join(pages), re.MULTILINE)
    assert named
    assert set(named) <= set(localchat.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path):
    for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_files_of_the_code_that_are_named_exist(page: str):
    """Their names are paths from any folder on."""
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("[!.]*/**/*.*")]
    named = re.findall(r"`([\w./-]+\.(?:py|jinja|html))`", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_sources_contain_the_files_that_the_readme_names():
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    included = {name for line in lines if line.startswith(("graft ", "include ")) for name in line.split()[1:]}
    included |= {"README.md", "LICENSE", "pyproject.toml", "localchat"}  # setuptools includes these.
    named = {target.split("/")[0] for target in re.findall(r"\]\(((?!http)[^)]+)\)", README.read_text("utf-8"))}
    assert named | {"Makefile", "tests", "tools", "examples"} <= included
    assert all((ROOT / name).exists() for name in included)


def rows(head: str, page: Path = DOCS / "client.md") -> list[list[str]]:
    """The cells of the table whose first line begins like this."""
    table = page.read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_options_in_the_docs_are_those_of_the_server():
    """Each with its default, if --help shows it."""
    table = {flag: row for row in rows("| option |", DOCS / "server.md") for flag in re.findall(r"`(-[\w-]+)", row[0])}
    declared = [option for group in GROUPS for option in fields(group)]
    assert set(table) <= {"-m", *(flag for option in declared for flag in option.metadata["flags"])}
    for option in declared:
        (row,) = {tuple(table[flag]) for flag in option.metadata["flags"] if flag in table}
        assert "%(default)s" not in option.metadata["arguments"]["help"] or str(option.default) in " ".join(row), row
    (settings,) = re.findall(r"^Settings are (.*); options", (DOCS / "models.md").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", settings)) == {*SETTINGS, "template", "adapters", "sampling"}


def test_tables_of_the_client_are_complete():
    names = re.findall(
        r"`(\w+)`", " ".join(row[0] for row in rows("| option | methods |") + rows("| field | methods |"))
    )
    classes = [options.MapOptions, options.RunOptions, options.CompletionOptions, options.EmbeddingOptions]
    assert sorted(names) == sorted(set().union(*(known.__annotations__ for known in classes)))
    chats = {"chat", "stream", "map", "run", "run_stream", "conversation"}
    groups = {"chats": chats, "all": {*chats, "complete", "embed", "request"}, "conversations": {"conversation"}}
    for names, methods, *_ in rows("| option | methods |") + rows("| field | methods |"):
        listed = re.findall(r"\w+", methods.partition(";")[0])
        expected = set().union(*(groups.get(name, {name}) for name in listed))
        for name in re.findall(r"`(\w+)`", names):
            also = {"embed"} if name == "user" else set()
            has = {method for method, kind in options.OPTIONS_OF.items() if name in kind.__annotations__} - {"Client"}
            # The overloads of these methods have it.
            has |= {"chat", "stream", "map"} if name == "response_format" else set()
            # Runs and conversations have it as an argument.
            has |= {"run", "run_stream", "conversation"} if name == "tools" else set()
            assert has == expected | also, name
    shown = " ".join(row[0] for row in rows("| option | meaning |", DOCS / "terminal.md"))
    for action in make_parser()._actions[1:]:
        assert not action.option_strings or any(f"`{name}" in shown for name in action.option_strings), action
    errors_page = DOCS / "errors.md"
    shown = " ".join(map(str, rows("| error | when |", errors_page)))
    public = [getattr(localchat, name) for name in localchat.__all__]
    errors = [kind for kind in public if isinstance(kind, type) and issubclass(kind, localchat.LocalChatError)]
    assert {kind.__name__ for kind in errors} - {"LocalChatError"} <= set(re.findall(r"`(\w+)`", shown))
    tree = errors_page.read_text(encoding="utf-8").partition("LocalChatError\n")[2].partition("```")[0]
    assert {kind.__name__ for kind in errors} - {"LocalChatError"} == set(re.findall(r"[├└]── ([A-Z]\w+)", tree))
    events = {row[0]: row[1:] for row in rows("| event | `type` |")}
    for event in (*get_args(localchat.StreamEvent), localchat.ToolResult):
        kind, shown = events[f"`{event.__name__}`"]
        names = {field.name for field in fields(event)} - {"choice_index", "raw", "type"}
        assert kind == f"`{event.type}`"
        assert names <= set(re.findall(r"`(\w+)`", shown)), event


def test_readme_says_what_the_server_has():
    has = {row[0]: row[1] for row in rows("| | localchat | llama-server |", README)}
    assert (has["web page to chat with"] == "yes") == ("<html" in chat_page()[0])


def test_sampling_fields_in_the_docs_are_those_of_the_server():
    table = {name: row for row in rows("| field | default |", DOCS / "fields.md") for name in row[0].split(", ")}
    declared = {f"`{field.name}`": field for field in fields(SamplingParams)}
    aliases = {f"`{alias}`" for number in NUMBERS.values() for alias in number.aliases}
    assert set(table) == set(declared) | aliases
    for name, field in declared.items():
        assert not isinstance(field.default, (int, float)) or float(table[name][1]) == field.default, name
        if field.name in NUMBERS and (high := NUMBERS[field.name].high) is not None and high < 2**31 - 1:
            assert table[name][2] == f"{NUMBERS[field.name].low:g} to {high:g}"


def test_endpoints_in_the_docs_are_those_of_the_server(base_url: str):
    """A path below which all are served ends with a slash."""
    with urllib.request.urlopen(base_url) as response:
        served = {endpoint.partition("/v1")[2] for endpoint in json.load(response)["endpoints"]}
    text = " ".join(row[0] for row in rows("| endpoint |", DOCS / "server.md"))
    listed = {path.removeprefix("/v1") for path in re.findall(r"[ `](/[\w/-]*)", text)} - {"/", ""}
    assert {path.rstrip("/") for path in served} == {path.rstrip("/") for path in listed}


def test_fields_of_chats_are_in_the_docs():
    body = Fields({"messages": [{"role": "user", "content": "Hello!"}]})
    chat.parse_chat(body)
    assert body._read - set(WITHOUT_EFFECT) <= named_in(DOCS / "fields.md") | named_in(DOCS / "guarantees.md")


def test_timeout_of_mcp_servers_is_that_of_the_docs():
    (shown,) = re.findall(r"^\| `timeout` \| `Timeout\((.*?)\)`", (DOCS / "mcp.md").read_text("utf-8"), re.MULTILINE)
    assert shown == ", ".join(f"{name}={value}" for name, value in vars(DEFAULT_TIMEOUT).items())


def test_versions_of_programs_are_those_that_are_run():
    shown = " ".join(row[1] for row in rows("| program |", DOCS / "clients.md"))
    assert {program.version for program in PROGRAMS} <= set(re.findall(r"[\d.]+\d", shown))


def test_rooms_in_the_docs_are_those_of_the_code():
    shown = {row[0].strip("`/") for row in rows("| room |", DOCS / "design.md")}
    assert {room for room in MAY_IMPORT if room} == {room for room in shown if (ROOT / "localchat" / room).is_dir()}


def test_index_of_the_docs_names_every_page():
    named = re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text("utf-8"))
    assert {*named, "README.md"} == {page.name for page in DOCS.glob("*.md")}


def test_page_lists_the_fields_that_are_refused():
    paragraph = (DOCS / "fields.md").read_text("utf-8").partition("## Fields that are refused")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == {*UNSUPPORTED, *chat.UNSUPPORTED, *embeddings.UNSUPPORTED}
