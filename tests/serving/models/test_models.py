"""Models by name and by path, over a fake home folder with the layouts of other programs."""

import errno
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import time
from unittest import mock

import pytest

from localchat.server import chosen_model, read_options
from localchat.serving.core.errors import NO_MEMORY
from localchat.serving.core.model_options import Adapter
from localchat.serving.engine.values import EngineDied, LoadOptions
from localchat.serving.loading import loader as loading
from localchat.serving.loading.loader import load_options, reason_of
from localchat.serving.models import sources
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import DEMO_PATH, ModelFile, ModelFileError, model_at, summary_of
from localchat.serving.models.sources import read_mapping
from tests.serving.models.test_gguf import ARRAY, STRING, TENSORS, file_of
from tests.support.command import run_command

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
        ("org/none", "to fetch it: python -m localchat.server --get org/none"),
        ("none", "no model 'none' here; (?!.*--get)"),
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


@pytest.mark.parametrize("commit", ["c0ffee", "decade"])
def test_snapshot_of_a_repository_is_that_of_its_main_branch(home, commit):
    repository = home / ".cache/huggingface/hub/models--org--one-GGUF"
    for other in ("decade", "notes.txt"):
        (repository / "snapshots" / other).mkdir()
    for name in ("one-Q4_K_M", "only-there"):
        (repository / f"snapshots/decade/{name}.gguf").write_text(name)
    found = catalog(home)
    assert found.find("one-Q4_K_M").path.parent.name == "c0ffee"
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(f"{commit}\n")
    assert found.find("org/one-GGUF:Q4_K_M").path.parent.name == commit
    assert found.find("org/one-GGUF:only-there").path.parent.name == "decade"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'"text"', b"\xff", b"[" * 100_000, b'{"layers": 3}', b'{"layers": [1]}',
     b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 1}]}'],
)  # fmt: skip
def test_damaged_file_of_another_program_hides_no_model(home, data, caplog):
    manifests = home / ".ollama/models/manifests"
    for name in (".DS_Store", "registry.ollama.ai/.DS_Store", "registry.ollama.ai/library/llama3.2/.DS_Store"):
        (manifests / name).write_bytes(data)
    (manifests / "registry.ollama.ai/library/llama3.2/bad").write_bytes(data)
    refs = home / ".cache/huggingface/hub/models--org--one-GGUF/refs"
    refs.mkdir()
    (refs / "main").write_bytes(data)
    found = catalog(home)
    assert [found.find(name).source for name in ("llama3.2:1b", "org/one-GGUF")] == ["Ollama", "Hugging Face"]
    (line,) = (record.getMessage() for record in caplog.records)
    assert "llama3.2/bad is skipped: the manifest cannot be read" in line


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
        ("XDG_CACHE_HOME", "huggingface/hub/models--x--y/snapshots/1/y-Q8_0.gguf"),
        ("LLAMA_CACHE", "y-Q8_0.gguf"),
    ],
)
def test_folders_of_other_programs_follow_their_variables(home, tmp_path_factory, variable, place):
    path = tmp_path_factory.mktemp("moved") / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    root = str(path)[: -len(place) - 1]
    assert catalog(home, **{variable: root}).find("y-Q8_0").path == path


def test_model_of_an_installation_without_a_network_is_found_by_its_name(home, monkeypatch):
    folder = home / "program/share/localchat/models"
    folder.mkdir(parents=True)
    (folder / "kit-Q4_0.gguf").touch()
    (folder / "models.json").write_text('{"org/kit-GGUF:Q4_0": "kit-Q4_0.gguf"}')
    monkeypatch.setattr(sys, "prefix", str(home / "program"))
    assert catalog(home).find("org/kit-GGUF").path == folder / "kit-Q4_0.gguf"
    with pytest.raises(ModelFileError, match="no model"):
        catalog(home, home / "own").find("org/kit-GGUF")


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
        ('{"a": {"path": "x.gguf", "ctx": -5}}', "'a.ctx' must be an integer from 0 to 2147483647, got -5"),
        ('{"a": {"path": "x.gguf", "ctx": 3}}', "'a.ctx' must be 0 or an integer of at least 256, got 3"),
        ('{"a": {"path": "x.gguf", "parallel": 0}}', "'a.parallel' must be an integer from 1"),
        (
            '{"a": {"path": "x.gguf", "adapters": {"b": 5}}}',
            "'a.adapters.b' must be a string, got 5",
        ),
        (
            '{"a": {"path": "x.gguf", "adapters": {"b": "f@x"}}}',
            "the scale of the adapter 'b' must be a number, got 'x'",
        ),
        ('{"a": {"path": "x.gguf", "adapters": ["f"]}}', "'a.adapters' must be an object"),
        ('{"a": "\\u0000"}', "null character"),
        ('{"a": {"path": "x.gguf", "mmproj": "\\ud800"}}', "surrogates not allowed"),
        ("[" * 100_000, "recursion"),
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


def test_a_mapping_file_in_toml(home, caplog):
    path = home / ".localchat/models/models.toml"
    path.write_text(TOML)
    if sys.version_info < (3, 11):
        with pytest.raises(ModelFileError, match=r"needs Python 3\.11; write models\.json"):
            catalog(home).models()
        return
    found = catalog(home)
    model = found.find("GPT-4o")
    assert (model.name, model.path) == ("qwen", home / ".localchat/models/mine.gguf")
    assert model.settings == {"ctx": 16384, "parallel": 4}
    path.write_text(TOML + "[\n")
    assert found.find("GPT-4o") == model  # As before the change.
    assert found.find("big").path == home / HOME["localchat"][1]
    assert caplog.text.count("line 6") == 1
    with pytest.raises(ModelFileError, match="line 6"):
        catalog(home).models()


def test_links_to_folders_are_followed_without_loops(home, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    for name in ("far", "both"):
        (outside / f"{name}.gguf").write_text(name)
    (outside / "back").symlink_to(home)
    folder = home / ".localchat/models"
    (folder / "out").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "linked.gguf").symlink_to(outside / "both.gguf")
    names = [model.name for model in catalog(home).models()]
    assert [names.count(name) for name in ("far", "mine", "linked", "both")] == [1, 1, 1, 0]
    assert catalog(home).find("both").name == "linked"  # One file under two names is one model.


def test_number_of_folders_is_limited(home, monkeypatch, caplog):
    monkeypatch.setattr(sources, "_MAX_FOLDERS", 3)
    for name in "abcd":
        (home / f".localchat/models/{name}").mkdir()
        (home / f".localchat/models/{name}/in_{name}.gguf").touch()
    names = {model.name for model in catalog(home).models()}
    assert {"mine", "in_b"} <= names
    assert "in_c" not in names
    assert "more than 3 folders" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_readable_file_is_skipped_with_one_log_line(home, monkeypatch, caplog):
    folder = home / ".localchat/models"
    os.mkfifo(folder / "pipe.gguf")
    (folder / "broken.gguf").symlink_to("nothing")
    (folder / "notes.txt").symlink_to("nothing")
    (folder / "circle").symlink_to("circle")
    (folder / "null.gguf").symlink_to(os.devnull)
    (folder / "new\nline.gguf").symlink_to("nothing")
    (folder / "closed").mkdir()
    listed = os.scandir

    def refusing(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = catalog(home)
    for name in ("a", "b"):
        (folder / f"{name}.gguf").touch()  # The folder is read again.
        assert found.find("mine").path == folder / "mine.gguf"
    lines = sorted(record.getMessage().removeprefix(f"{folder}/") for record in caplog.records)
    assert lines == [
        "broken.gguf is skipped: it is neither a file nor a link to one",
        f"circle is skipped: {os.strerror(errno.ELOOP)}",
        "closed is skipped: Permission denied",
        "new?line.gguf is skipped: it is neither a file nor a link to one",
        "null.gguf is skipped: it is neither a file nor a link to one",
        "pipe.gguf is skipped: it is neither a file nor a link to one",
    ]


@pytest.mark.parametrize(
    "file",
    [" .gguf", ".gguf", "a.gguf.gguf", "-m.gguf", "UPPER.GGUF", " a b .gguf", "a\x1b[2J\n.gguf", "n" * 250 + ".gguf"],
)
def test_listed_name_finds_its_file(tmp_path, file):
    (tmp_path / file).touch()
    (tmp_path / "a.gguf").touch()
    found = catalog(tmp_path, tmp_path)
    model = next(model for model in found.models() if model.path == tmp_path / file)
    assert model.name.isprintable()
    assert found.find(model.name) == model


def test_file_of_the_name_of_the_built_in_model_leaves_it_another_one(tmp_path):
    (tmp_path / "demo.gguf").write_bytes(b"mine")
    found = catalog(tmp_path, tmp_path)
    assert found.find("demo").path == tmp_path / "demo.gguf"
    assert found.find("built-in/demo").path == DEMO_PATH
    assert [model.name for model in found.models()] == ["demo", "built-in/demo"]


# --- headers ---


def adapter_for(architecture: str, base: str = "") -> bytes:
    texts = {"architecture": architecture, "type": "adapter", **({"base_model.0.name": base} if base else {})}
    return file_of([(f"general.{key}", STRING, text) for key, text in texts.items()], TENSORS)


def test_adapters_beside_a_model_are_found_by_their_headers(home):
    """For the name of their base, if they have one, or else in the folder of the only model."""
    folder = home / "adapted"
    model = [("general.architecture", STRING, "llama"), ("general.name", STRING, "First Model")]
    for name, data in {
        "one/mine-Q8_0": file_of(model[:1], TENSORS),
        "one/sql": adapter_for("llama"),
        "one/poet": adapter_for("llama", "Mine"),
        "one/x": adapter_for("qwen2"),
        "one/y": adapter_for("llama", "Yours"),
        "two/first": file_of(model, TENSORS),
        "two/other": file_of(model[:1], TENSORS),
        "two/sql": adapter_for("llama", "first-model-Q4_K_M"),
        "two/tax": adapter_for("llama", "first-model-Q4_K_M"),
        "two/z": adapter_for("llama"),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.gguf").write_bytes(data)
    found = catalog(home, folder)
    names = {model.name: [one.name for one in model.adapters] for model in found.models() if model.adapters}
    # A name that an adapter of an earlier model has keeps its meaning.
    assert names == {"mine-Q8_0": ["poet", "sql"], "first": ["tax"]}
    assert found.find("POET").name == "mine-Q8_0"
    (folder / "one/poet.gguf").unlink()
    (folder / "one/new.gguf").write_bytes(adapter_for("llama"))
    assert [one.name for one in found.find("new").adapters] == ["new", "sql"]


def test_adapters_of_a_mapping_file(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    adapters = {"sql": "sql.gguf", "half": "sql.gguf@0.5"}
    (home / "sql.gguf").write_bytes(adapter_for("localchat"))
    (home / "models.json").write_text(json.dumps({"tiny": {"path": str(DEMO_PATH), "adapters": adapters}}))
    options = read_options(["tiny", "--models", str(home / "models.json"), "--lora", f"more={home / 'sql.gguf'}@2"])
    with pytest.raises(ModelFileError, match="it is for the architecture 'localchat', the model has 'llama'"):
        chosen_model(options, Catalog(options.models_dir, options.models))
    (home / "sql.gguf").write_bytes(adapter_for("llama"))
    file = chosen_model(options, Catalog(options.models_dir, options.models))
    path = str(home / "sql.gguf")
    assert load_options(file, options).adapters == (
        Adapter("more", path, 2.0), Adapter("sql", path), Adapter("half", path, 0.5),
    )  # fmt: skip
    assert "half" in run_command("--list", "--models", str(home / "models.json")).stdout


def test_files_beside_the_only_model_are_told_by_their_headers(tmp_path):
    folder = tmp_path / ".localchat/models"
    folder.mkdir(parents=True)
    headers = {
        "lora": {"type": "adapter", "architecture": "llama"},
        "vision": {"architecture": "clip"},
        "projector": {"type": "mmproj"},
        "matrix": {"type": "imatrix"},
        "vector": {"architecture": "controlvector"},
        "only-words": {"type": "model", "architecture": "llama"},
        "my-mmproj-vocab-model": {"type": "model", "architecture": "llama"},
    }
    for name, header in headers.items():
        values = [(f"general.{key}", STRING, text) for key, text in header.items()]
        (folder / f"{name}.gguf").write_bytes(file_of(values, TENSORS if "model" in name else ()))
    (folder / "cut.gguf").write_bytes(b"GGUF")
    found = catalog(tmp_path)
    assert [model.name for model in found.models()] == ["cut", "my-mmproj-vocab-model", "demo"]
    assert found.default().name == "my-mmproj-vocab-model"
    (folder / "cut.gguf").unlink()
    assert model_at(str(folder)).name == "my-mmproj-vocab-model"
    done = run_command(str(folder / "lora.gguf"))
    assert (done.returncode, "lora.gguf: it is an adapter (LoRA) for a model, not a model" in done.stderr) == (1, True)
    (folder / "lora.gguf").write_bytes(file_of([("general.architecture", STRING, "llama")], TENSORS))
    os.utime(folder / "lora.gguf", (1, 1))
    assert found.find("lora")


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("general.file_type", STRING, "7" * 5000),
        ("general.file_type", ARRAY, (4, [1])),
        ("general.file_type", 11, -1),
        ("general.type", 4, 1),
        ("general.architecture", 4, 1),
        ("general.architecture", ARRAY, (STRING, ["llama"])),
        ("general.architecture", STRING, "x\n" * 20_000),
        ("llama.context_length", 7, True),
        ("llama.context_length", 5, -5),
        ("llama.context_length", 10, 2**64 - 1),
        ("llama.context_length", STRING, "4096"),
        ("general.parameter_count", 6, math.inf),
    ],
)
def test_value_of_a_header_that_no_reader_expects_is_unknown(tmp_path, key, kind, value):
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of([("general.architecture", STRING, "llama"), (key, kind, value)], TENSORS))
    found = summary_of(ModelFile(path, "model"))
    assert (found.quantisation, found.n_ctx_train, found.n_params, found.problem) == ("", 0, 0, "")
    assert len(found.architecture) <= 60
    assert "\n" not in found.architecture


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


def test_error_of_the_machine_is_no_property_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of([], TENSORS))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert summary_of(ModelFile(path, "model")).problem == f"{path}: Too many open files"
    assert summary_of(ModelFile(path, "model")).problem == ""


def test_list_shows_each_model_with_where_it_was_found(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    done = run_command("--list")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert {"NAME", "mine", "big", "org/one-GGUF", "org/two-GGUF:Q8_0", "llama3.2:1b", "demo"} <= set(lines)
    assert "Hugging Face" in lines["org/one-GGUF"]
    assert all(text in lines["demo"] for text in ("Q5_1", "4,096", "built-in"))
    assert "not a GGUF file" in lines["mine"]


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
    monkeypatch.setattr(loading, "EngineProcess", mock.Mock())
    monkeypatch.setattr(sys, "stderr", mock.Mock(wraps=io.StringIO(), isatty=lambda: True, closed=False))
    start = loading._Start(ModelFile(DEMO_PATH, "demo"), LoadOptions(), has_bar=True)
    start._show(0.5)
    assert sys.stderr.getvalue().startswith(shown)
    assert bool(sys.stderr.getvalue()) == bool(shown)
