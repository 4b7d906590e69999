"""Models by name and by path, over a fake home folder with the layouts of other programs (G14 to G23, K34)."""

import errno
import io
import json
import logging
import os
import re
import shutil
import sys
import time
from unittest import mock

import pytest

from localchat.server import chosen_model, read_options
from localchat.serving.core.errors import NO_MEMORY
from localchat.serving.engine.values import EngineDied, LoadOptions
from localchat.serving.http import loading
from localchat.serving.http.loading import load_options, reason_of
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import DEMO_PATH, ModelFile, ModelFileError, model_at, summary_of
from localchat.serving.models.sources import read_mapping

from .command import run_command

DIGEST = "a" * 64

# The files of each program below the home folder.
HOME = {
    "localchat": (".localchat/models/mine.gguf", ".localchat/models/big-00001-of-00002.gguf",
                  ".localchat/models/big-00002-of-00002.gguf", ".localchat/models/mmproj-mine.gguf"),
    "Hugging Face": (".cache/huggingface/hub/models--org--one-GGUF/snapshots/c0ffee/one-Q4_K_M.gguf",
                     ".cache/huggingface/hub/models--org--two-GGUF/snapshots/c0ffee/two-Q4_K_M.gguf",
                     ".cache/huggingface/hub/models--org--two-GGUF/snapshots/c0ffee/two-Q8_0.gguf"),
    "LM Studio": (".lmstudio/models/lmstudio-community/three-GGUF/three-Q4_K_M.gguf",),
    "llama.cpp": (".cache/llama.cpp/org_four_four-q4_0.gguf",),
    "Ollama": (f".ollama/models/blobs/sha256-{DIGEST}",),
}  # fmt: skip


@pytest.fixture
def home(tmp_path):
    for files in HOME.values():
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.encode())
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}"},
              {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64}]  # fmt: skip
    for name in ("library/llama3.2/latest", "library/llama3.2/1b", "someone/own/7b"):
        manifest = tmp_path / ".ollama/models/manifests/registry.ollama.ai" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"layers": layers}))
    return tmp_path


def catalog(home, *folders, mapping=None, **variables):
    return Catalog(folders, mapping, {"HOME": str(home), **variables})


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (" MINE ", "mine.gguf"),
        ("mine.gguf", "mine.gguf"),
        ("big", "big-00001-of-00002.gguf"),
        ("org/one-GGUF", "one-Q4_K_M.gguf"),
        ("one:q4_k_m", "one-Q4_K_M.gguf"),
        ("org_four_four", "org_four_four-q4_0.gguf"),
        ("org/two-GGUF:Q8_0", "two-Q8_0.gguf"),
        ("lmstudio-community/three-GGUF", "three-Q4_K_M.gguf"),
        ("org_four_four-q4_0", "org_four_four-q4_0.gguf"),
        ("llama3.2", f"sha256-{DIGEST}"),
        ("demo", "demo.gguf"),
    ],
)
def test_a_name_means_one_file(home, name, file):
    assert catalog(home).find(name).path.name == file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two-GGUF", r"means 2 models: use one of 'org/two-GGUF:Q4_K_M', 'org/two-GGUF:Q8_0'"),
        ("minee", "did you mean 'mine'"),
        ("zzzzzzzz", "on offer: 'big', 'mine'"),
        ("mmproj-mine", "no model"),
        ("../mine", "no model"),
        ("~/.localchat/models/mine.gguf", "no model"),
    ],
)
def test_a_name_that_means_no_model_is_answered_with_names(home, name, message):
    with pytest.raises(ModelFileError, match=message):
        catalog(home).find(name)


def test_a_path_is_first_on_the_command_line(home, monkeypatch):
    monkeypatch.chdir(home / ".localchat/models")
    other = home / "mine"
    other.mkdir()
    path = str(home / ".localchat/models/mine.gguf")
    assert catalog(home).find(path, takes_paths=True).path == home / ".localchat/models/mine.gguf"
    with pytest.raises(ModelFileError, match="folder without a model"):
        catalog(home).find(str(other), takes_paths=True)


def test_precedence_is_mapping_then_folders_then_other_programs(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for name in ("one-Q4_K_M", "llama3.2", "mine"):
        (folder / f"{name}.gguf").write_bytes(b"own")
    (folder / "models.json").write_text(
        json.dumps({"mine": "llama3.2.gguf", "short": {"path": "mine.gguf", "aliases": ["s"]}})
    )
    found = catalog(home, folder)
    assert found.find("mine").path == folder / "llama3.2.gguf"
    assert found.find("S").path == folder / "mine.gguf"
    assert found.find("llama3.2").path == folder / "llama3.2.gguf"
    assert found.find("one-Q4_K_M").path == folder / "one-Q4_K_M.gguf"
    assert found.find("org/two-GGUF:q8_0").source == "Hugging Face"


def test_two_files_of_one_name_are_named_with_their_folders(home):
    for folder in ("a", "b"):
        path = home / ".localchat/models" / folder / "same.gguf"
        path.parent.mkdir()
        path.touch()
    found = catalog(home)
    assert {"a/same", "b/same"} <= {model.name for model in found.models()}
    with pytest.raises(ModelFileError, match="means 2 models"):
        found.find("same")
    assert found.find("A/same").path == home / ".localchat/models/a/same.gguf"


def test_changes_on_disk_are_noticed(home):
    found = catalog(home)
    folder = home / ".localchat/models"
    assert found.models() is found.models()
    (folder / "new.gguf").touch()
    assert found.find("new").path == folder / "new.gguf"
    (folder / "new.gguf").unlink()
    with pytest.raises(ModelFileError):
        found.find("new")
    (folder / "models.json").write_text('{"other": "mine.gguf"}')
    assert found.find("other").path == folder / "mine.gguf"
    (folder / "models.json").write_text('{"third": "mine.gguf"}')
    os.utime(folder / "models.json", (1, 1))  # another time than before, however coarse the clock of the file system
    assert found.find("third").path == folder / "mine.gguf"


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("HF_HOME", "hub/models--x--y/snapshots/1/y-Q8_0.gguf"),
        ("HF_HUB_CACHE", "models--x--y/snapshots/1/y-Q8_0.gguf"),
        ("LLAMA_CACHE", "y-Q8_0.gguf"),
    ],
)
def test_folders_of_other_programs_follow_their_variables(home, tmp_path_factory, variable, place):
    path = tmp_path_factory.mktemp("moved") / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    root = str(path)[: -len(place) - 1]
    assert catalog(home, **{variable: root}).find("y-Q8_0").path == path


def test_the_default_is_named_or_the_only_one_or_built_in(home, tmp_path_factory, caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    assert catalog(home).default().path == DEMO_PATH
    assert "models were found, and none is named" in caplog.text
    assert catalog(home, LOCALCHAT_MODEL="mine").default() == catalog(home).find("mine")
    empty = tmp_path_factory.mktemp("empty")
    assert catalog(empty).default() == catalog(empty).find("demo")
    (empty / ".localchat/models").mkdir(parents=True)
    (empty / ".localchat/models/only.gguf").touch()
    assert catalog(empty).default().name == "only"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "'a' must be an object, got 1"),
        (
            '{"a": {"path": "x.gguf", "contxt": 3}}',
            "the key 'a.contxt' is unknown; the keys of a model are path, aliases",
        ),
        ('{"a": {"ctx": 3}}', "'a.path' must be a string that is not empty, got nothing"),
        ('{"a": {"path": "x.gguf", "ctx": "3"}}', "'a.ctx' must be an integer, got \"3\""),
        ('{"a": {"path": "x.gguf", "sampling": {"topp": 1}}}', "the key 'a.sampling.topp' is unknown"),
        (
            '{"a": {"path": "x.gguf", "sampling": {"top_p": 2}}}',
            "'a.sampling.top_p' must be a number from 0 to 1, got 2",
        ),
        ('{"a": ', "line 1 column"),
        ("[]", "must be an object of names"),
    ],
)
def test_a_broken_mapping_file_is_an_error_with_its_place(tmp_path, text, message):
    path = tmp_path / "models.json"
    path.write_text(text)
    with pytest.raises(ModelFileError, match=re.escape(message)) as error:
        read_mapping(path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


TOML = """[qwen]
path = "mine.gguf"
aliases = ["gpt-4o"]
ctx = 16384
parallel = 4
"""


def test_a_mapping_file_in_toml(home):
    path = home / ".localchat/models/models.toml"
    path.write_text(TOML)
    if sys.version_info < (3, 11):
        with pytest.raises(ModelFileError, match=r"needs Python 3\.11; write models\.json"):
            catalog(home).models()
        return
    model = catalog(home).find("GPT-4o")
    assert (model.name, model.path) == ("qwen", home / ".localchat/models/mine.gguf")
    assert model.settings == {"ctx": 16384, "parallel": 4}
    path.write_text(TOML + "[\n")
    with pytest.raises(ModelFileError, match="line 6"):
        catalog(home).models()


def test_links_that_leave_a_folder_and_loops_are_not_followed(home, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.gguf").touch()
    folder = home / ".localchat/models"
    (folder / "out").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "linked.gguf").symlink_to(outside / "secret.gguf")  # a file that the user has linked here
    names = [model.name for model in catalog(home).models()]
    assert "secret" not in names
    assert names.count("mine") == 1
    assert "linked" in names


def test_10_000_files_are_listed_in_bounded_time(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(10_000):
        (folder / f"model-{i}.gguf").touch()
    found = catalog(tmp_path, folder)
    started = time.process_time()
    assert len(found.models()) == 10_001
    assert time.process_time() - started < 3  # some tenths of a second on a quiet machine
    with pytest.raises(ModelFileError, match=r"and \d+ more"):
        found.find("zzzzzz")


def test_a_file_that_is_gone_is_a_problem_in_the_list(home):
    model = catalog(home).find("mine")
    shutil.rmtree(home / ".localchat")
    assert summary_of(model).problem == f"{model.path}: {os.strerror(2)}"


def test_list_shows_each_model_with_where_it_was_found(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    done = run_command("--list")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert {"NAME", "mine", "big", "org/one-GGUF", "org/two-GGUF:Q8_0", "llama3.2:1b", "demo"} <= set(lines)
    assert "Hugging Face" in lines["org/one-GGUF"]
    assert all(text in lines["demo"] for text in ("Q5_1", "4,096", "built-in"))
    assert "not a GGUF file" in lines["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zzzz"], "there is no model 'zzzz' here; on offer: 'big', 'mine'"),
        (["mine"], "mine.gguf: not a GGUF file"),
        (["--models-dir", "/nonexistent", "mine"], "there is no model 'mine'"),
    ],
)
def test_a_name_on_the_command_line(home, monkeypatch, arguments, message):
    monkeypatch.setenv("HOME", str(home))
    done = run_command(*arguments)
    assert done.returncode == 1
    assert message in done.stderr


def test_settings_of_a_mapping_file_apply_unless_the_command_line_sets_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models.json").write_text(json.dumps({"tiny": {"path": str(DEMO_PATH), "ctx": 512, "parallel": 2}}))
    options = read_options(["tiny", "--models-dir", str(tmp_path), "--ctx", "1024"])
    file = chosen_model(options, Catalog(options.models_dir, options.models))
    assert (file.name, file.path) == ("tiny", DEMO_PATH)
    settings = load_options(file, options)
    assert (settings.n_ctx, settings.n_parallel) == (1024, 2)


# --- paths, and names of one model ---


@pytest.fixture
def folder(tmp_path):
    for name in ("one/tiny.gguf", "two/a.gguf", "two/b.gguf", "none/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "parts").mkdir()
    for part in (1, 2):
        (tmp_path / "parts" / f"big-0000{part}-of-00002.gguf").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("argument", "path", "name"),
    [
        pytest.param("one", "one/tiny.gguf", "tiny", id="folder with one model"),
        pytest.param("parts", "parts/big-00001-of-00002.gguf", "big", id="folder with one model in parts"),
        pytest.param("parts/big-00002-of-00002.gguf", "parts/big-00001-of-00002.gguf", "big", id="any part"),
    ],
)
def test_model_argument(folder, argument, path, name):
    assert model_at(str(folder / argument)) == ModelFile(folder / path, name)


def test_file_with_a_name_that_is_not_utf_8_is_found_by_its_listed_name(folder):
    path = folder / "m\udcfcller.gguf"
    try:
        path.touch()
    except OSError:
        pytest.skip("this file system has no such names")
    model = model_at(str(path))
    assert model == ModelFile(path, "m?ller")


def test_folder_with_several_models_lists_them_with_their_sizes(folder):
    two = folder / "two"
    (two / "b.gguf").write_bytes(bytes(12_000_000))
    for part in (1, 2):
        (two / f"c-0000{part}-of-00002.gguf").write_bytes(bytes(1_500_000))
    with pytest.raises(ModelFileError) as refused:
        model_at(str(two))
    assert str(refused.value).splitlines() == [
        f"{two} holds 3 models, choose one:",
        f"  {two / 'a.gguf'}  0 MB",
        f"  {two / 'b.gguf'}  12 MB",
        f"  {two / 'c-00001-of-00002.gguf'}  3 MB",
    ]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("no.gguf", r"there is no file .*no\.gguf"),
        ("none", "folder without a model"),
        ("https://example.org/m.gguf", "is a URL.*downloads nothing.*curl -LO https://example.org/m.gguf"),
    ],
)
def test_error_of_an_argument_without_a_model_has_advice(folder, monkeypatch, argument, message):
    monkeypatch.chdir(folder)
    with pytest.raises(ModelFileError, match=message):
        model_at(argument)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (OSError(errno.EACCES, "Permission denied"), "[Errno 13] Permission denied"),
        (ImportError("Long advice.\n\nnumpy is broken\n"), "numpy is broken"),
        (ValueError(), "ValueError"),
        (
            EngineDied("SIGILL", "SIGILL"),
            "SIGILL: llama.cpp was built for another CPU; build it on this machine (docs/install.md)",
        ),
    ],
    ids=["memory", "ENOMEM", "permission", "last line", "without a text", "other CPU"],
)
def test_reason_why_a_file_cannot_be_loaded_is_one_line(error: Exception, reason: str):
    assert reason_of(DEMO_PATH, error) == f"{DEMO_PATH}: {reason}"


@pytest.mark.parametrize(("term", "shown"), [("xterm", "\rloading demo ["), ("dumb", "")])
def test_progress_is_a_bar_unless_the_terminal_is_dumb(term: str, shown: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(loading, "Front", mock.Mock())
    monkeypatch.setattr(sys, "stderr", mock.Mock(wraps=io.StringIO(), isatty=lambda: True))
    start = loading._Start(ModelFile(DEMO_PATH, "demo"), LoadOptions(), has_bar=True)
    start._show(0.5)
    assert sys.stderr.getvalue().startswith(shown)
    assert bool(sys.stderr.getvalue()) == bool(shown)
