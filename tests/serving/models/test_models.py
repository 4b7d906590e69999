"""Models by name and by path, over a fake home folder with the layouts of other programs."""

import errno
import json
import logging
import math
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest

from localchat.server import chosen_model, read_options
from localchat.serving.core.model_options import Adapter
from localchat.serving.loading.loader import load_options
from localchat.serving.models import sources
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import DEMO_PATH, ModelFile, ModelFileError, model_at, summary_of
from localchat.serving.models.sources import read_mapping
from tests.serving.models.test_gguf import ARRAY, STRING, TENSORS, file_of
from tests.support.command import run_command
from tests.support.growth import assert_linear

DIGEST = "a" * 64
MODELS, HUB = ".localchat/models", ".cache/huggingface/hub/models--org--"
PARTS = ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
MANIFESTS = ".ollama/models/manifests/registry.ollama.ai"
# The files of all programs below the home folder.
HOME = (
    f"{MODELS}/mine.gguf", *(f"{MODELS}/{part}" for part in PARTS), f"{MODELS}/mmproj-mine.gguf",
    f"{HUB}one-GGUF/snapshots/c0ffee/one-Q4_K_M.gguf", f"{HUB}two-GGUF/snapshots/c0ffee/two-Q4_K_M.gguf",
    f"{HUB}two-GGUF/snapshots/c0ffee/two-Q8_0.gguf",
    ".lmstudio/models/lmstudio-community/three-GGUF/three-Q4_K_M.gguf",
    f"{MODELS}/a/same.gguf", f"{MODELS}/b/same.gguf",
    ".cache/llama.cpp/org_four_four-q4_0.gguf", f".ollama/models/blobs/sha256-{DIGEST}",
)  # fmt: skip


def put(folder, *names, data=b"no model"):
    """Write files with this content, and the folders around them."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def home(tmp_path):
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}"},
              {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64}]  # fmt: skip
    names = ("library/llama3.2/latest", "library/llama3.2/1b", "someone/own/7b")
    put(tmp_path, *HOME)
    put(tmp_path / MANIFESTS, *names, data=json.dumps({"layers": layers}).encode())
    return tmp_path


def catalog(home, *folders, **variables):
    return Catalog(folders, None, {"HOME": str(home), **variables})


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (" MINE ", "mine.gguf"), ("mine.gguf", "mine.gguf"), ("big", PARTS[0]), ("org/one-GGUF", "one-Q4_K_M.gguf"),
        ("one:q4_k_m", "one-Q4_K_M.gguf"), ("org_four_four", "org_four_four-q4_0.gguf"),
        ("org/two-GGUF:Q8_0", "two-Q8_0.gguf"), ("lmstudio-community/three-GGUF", "three-Q4_K_M.gguf"),
        ("org_four_four-q4_0", "org_four_four-q4_0.gguf"), ("llama3.2", f"sha256-{DIGEST}"), ("demo", "demo.gguf"),
        ("ORG_four_four-q4_0.GGUF", "org_four_four-q4_0.gguf"), ("A/same", "a/same.gguf"), ("b/same", "b/same.gguf"),
    ],
)  # fmt: skip
def test_a_name_means_one_file(home, name, file):
    assert str(catalog(home).find(name).path).endswith(f"/{file}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", "to fetch it: python -m localchat.server --get org/none"),
        ("none", "no model 'none' here; (?!.*--get)"),
        ("two-GGUF", r"means 2 models: use one of 'org/two-GGUF:Q4_K_M', 'org/two-GGUF:Q8_0'"),
        ("same", r"means 2 models: use one of 'a/same', 'b/same'"),
        ("minee", "did you mean 'mine'"),
        ("zzzzzzzz", "on offer: 'big', 'mine'"),
        *((name, "no model") for name in ("mmproj-mine", "../mine", f"~/{MODELS}/mine.gguf")),
    ],
)
def test_a_name_that_means_no_model_is_answered_with_names(home, name, message):
    with pytest.raises(ModelFileError, match=message):
        catalog(home).find(name)


def test_precedence_is_mapping_then_folders_then_other_programs(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    put(folder, "one-Q4_K_M.gguf", "llama3.2.gguf", "mine.gguf")
    mapping = {"mine": "llama3.2.gguf", "short": {"path": "mine.gguf", "aliases": ["s"]}}
    (folder / "models.json").write_text(json.dumps(mapping))
    found = catalog(home, folder)
    for name, file in (("mine", "llama3.2"), ("S", "mine"), ("llama3.2", "llama3.2"), ("one-Q4_K_M", "one-Q4_K_M")):
        assert found.find(name).path == folder / f"{file}.gguf"
    assert found.find("org/two-GGUF:q8_0").source == "Hugging Face"


@pytest.mark.parametrize("commit", ["c0ffee", "decade"])
def test_snapshot_of_a_repository_is_that_of_its_main_branch(home, commit):
    repository = home / f"{HUB}one-GGUF"
    put(repository / "snapshots", "notes.txt/x", "decade/one-Q4_K_M.gguf", "decade/only-there.gguf")
    found = catalog(home)
    assert found.find("one-Q4_K_M").path.parent.name == "c0ffee"
    put(repository, "refs/main", data=f"{commit}\n".encode())
    assert found.find("org/one-GGUF:Q4_K_M").path.parent.name == commit
    assert found.find("org/one-GGUF:only-there").path.parent.name == "decade"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'"text"', b"\xff", b"[" * 100_000, b'{"layers": 3}', b'{"layers": [1]}',
     b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 1}]}'],
)  # fmt: skip
def test_damaged_file_of_another_program_hides_no_model(home, data, caplog):
    put(home, f"{MANIFESTS}/../.DS_Store", f"{HUB}one-GGUF/refs/main", data=data)
    put(home / MANIFESTS, ".DS_Store", "library/llama3.2/.DS_Store", "library/llama3.2/bad", data=data)
    found = catalog(home)
    assert [found.find(name).source for name in ("llama3.2:1b", "org/one-GGUF")] == ["Ollama", "Hugging Face"]
    (line,) = (record.getMessage() for record in caplog.records)
    assert "llama3.2/bad is skipped: the manifest cannot be read" in line


def test_changes_on_disk_are_noticed(home):
    found, folder = catalog(home), home / MODELS
    assert found.models() is found.models()
    put(folder, "new.gguf")
    assert found.find("new").path == folder / "new.gguf"
    (folder / "new.gguf").unlink()
    with pytest.raises(ModelFileError):
        found.find("new")
    for i, name in enumerate(("other", "third")):
        put(folder, "models.json", data=b'{"%s": "mine.gguf"}' % name.encode())
        os.utime(folder / "models.json", (i, i))  # another time than before, however coarse the clock is
        assert found.find(name).path == folder / "mine.gguf"


def test_folders_of_other_programs_follow_their_variables(tmp_path):
    snapshot = "models--x--y/snapshots/1/"
    for variable, place in {
        "HF_HOME": f"hub/{snapshot}", "HF_HUB_CACHE": snapshot, "XDG_CACHE_HOME": f"huggingface/hub/{snapshot}",
        "LLAMA_CACHE": "", "LOCALAPPDATA": "llama.cpp/",
    }.items():  # fmt: skip
        root = tmp_path / variable
        put(root, f"{place}y-Q8_0.gguf")
        assert catalog(tmp_path, **{variable: str(root)}).find("y-Q8_0").path == root / f"{place}y-Q8_0.gguf"


def test_cache_of_llama_cpp_follows_the_cache_folder_of_the_user(tmp_path):
    put(tmp_path, "llama.cpp/y-Q8_0.gguf")
    assert catalog(tmp_path, XDG_CACHE_HOME=str(tmp_path)).find("y-Q8_0").source == "llama.cpp"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["tiny-UD-Q4_K_XL"], {":UD-Q4_K_XL": 0, ":ud-q4_k_xl": 0, ":Q4_K_XL": 0}),
        (["tiny-UD-Q4_K_XL", "tiny-Q8_0"], {":UD-Q4_K_XL": 0, ":Q4_K_XL": 0, ":Q8_0": 1}),
        (["tiny-UD-Q4_K_XL", "tiny-Q4_K_XL"], {":UD-Q4_K_XL": 0, ":Q4_K_XL": 1}),
    ],
)
def test_dynamic_quantisation_has_its_name_in_other_programs(tmp_path, files, names):
    snapshot = ".cache/huggingface/hub/models--maker--tiny-GGUF/snapshots/1"
    put(tmp_path, *(f"{snapshot}/{file}.gguf" for file in files))
    found = catalog(tmp_path)
    for name, index in names.items():
        assert found.find(f"maker/tiny-GGUF{name}").path.name == f"{files[index]}.gguf"


@pytest.mark.parametrize("name", ["caf\u00e9", "cafe\u0301", "CAFE\u0301"])
@pytest.mark.parametrize("file", ["caf\u00e9", "cafe\u0301"])
def test_letters_with_accents_are_found_however_they_are_written(tmp_path, file, name):
    put(tmp_path, f"{MODELS}/{file}.gguf")
    assert catalog(tmp_path).find(name).path.name == f"{file}.gguf"


def test_model_of_an_installation_without_a_network_is_found_by_its_name(home, monkeypatch):
    folder = home / "program/share/localchat/models"
    put(folder, "kit-Q4_0.gguf")
    put(folder, "models.json", data=b'{"org/kit-GGUF:Q4_0": "kit-Q4_0.gguf"}')
    monkeypatch.setattr(sys, "prefix", str(home / "program"))
    assert catalog(home).find("org/kit-GGUF").path == folder / "kit-Q4_0.gguf"
    with pytest.raises(ModelFileError, match="no model"):
        catalog(home, home / "own").find("org/kit-GGUF")


def test_the_default_is_named_or_the_only_one_or_built_in(home, tmp_path_factory, caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    assert catalog(home).default().path == DEMO_PATH
    assert "models were found: requests that name none get the built-in one" in caplog.text
    assert catalog(home, LOCALCHAT_MODEL="mine").default() == catalog(home).find("mine")
    empty = tmp_path_factory.mktemp("empty")
    assert catalog(empty).default() == catalog(empty).find("demo")
    put(empty, f"{MODELS}/only.gguf")
    assert catalog(empty).default().name == "only"


def broken(fields):
    return f'{{"a": {{"path": "x.gguf", {fields}}}}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "'a' must be an object, got 1"),
        (broken('"contxt": 3'), "the key 'a.contxt' is unknown; the keys of a model are path, aliases"),
        ('{"a": {"ctx": 3}}', "'a.path' must be a string that is not empty, got nothing"),
        (broken('"ctx": "3"'), "'a.ctx' must be an integer, got \"3\""),
        (broken('"sampling": {"topp": 1}'), "the key 'a.sampling.topp' is unknown"),
        (broken('"sampling": {"top_p": 2}'), "'a.sampling.top_p' must be a number from 0 to 1, got 2"),
        (broken('"ctx": -5'), "'a.ctx' must be an integer from 0 to 2147483647, got -5"),
        (broken('"ctx": 3'), "'a.ctx' must be 0 or an integer of at least 256, got 3"),
        (broken('"parallel": 0'), "'a.parallel' must be an integer from 1"),
        (broken('"adapters": {"b": 5}'), "'a.adapters.b' must be a string, got 5"),
        (broken('"adapters": {"b": "f@x"}'), "the scale of the adapter 'b' must be a number, got 'x'"),
        (broken('"adapters": ["f"]'), "'a.adapters' must be an object"),
        ('{"a": "\\u0000"}', "null character"),
        (broken('"mmproj": "\\ud800"'), "surrogates not allowed"),
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


TOML = '[qwen]\npath = "mine.gguf"\naliases = ["gpt-4o"]\nctx = 16384\nparallel = 4\n'


def test_a_mapping_file_in_toml(home, caplog):
    path = home / MODELS / "models.toml"
    path.write_text(TOML)
    if sys.version_info < (3, 11):
        with pytest.raises(ModelFileError, match=r"needs Python 3\.11; write models\.json"):
            catalog(home).models()
        return
    found = catalog(home)
    model = found.find("GPT-4o")
    assert (model.name, model.path) == ("qwen", home / MODELS / "mine.gguf")
    assert model.settings == {"ctx": 16384, "parallel": 4}
    path.write_text(TOML + "[\n")
    assert found.find("GPT-4o") == model  # As before the change.
    assert found.find("big").path == home / MODELS / PARTS[0]
    assert caplog.text.count("line 6") == 1
    with pytest.raises(ModelFileError, match="line 6"):
        catalog(home).models()


def test_links_to_folders_are_followed_without_loops(home):
    outside, folder = home / "outside", home / MODELS
    put(outside, "far.gguf", "both.gguf")
    links = {outside / "back": home, folder / "out": outside, folder / "loop": folder}
    for link, target in {**links, folder / "linked.gguf": outside / "both.gguf"}.items():
        link.symlink_to(target)
    names = [model.name for model in catalog(home).models()]
    assert [names.count(name) for name in ("far", "mine", "linked", "both")] == [1, 1, 1, 0]
    assert catalog(home).find("both").name == "linked"  # One file under two names is one model.


def test_number_of_folders_is_limited(home, monkeypatch, caplog):
    monkeypatch.setattr(sources, "_MAX_FOLDERS", 3)
    put(home / MODELS, *(f"{name}/in_{name}.gguf" for name in "abcd"))
    names = {model.name for model in catalog(home).models()}
    assert {"mine", "in_b"} <= names
    assert "in_c" not in names
    assert "more than 3 folders" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_readable_file_is_skipped_with_one_log_line(home, monkeypatch, caplog):
    folder, listed = home / MODELS, os.scandir
    os.mkfifo(folder / "pipe.gguf")
    no_files = {"broken.gguf": "nothing", "null.gguf": os.devnull, "new\nline.gguf": "nothing"}
    for name, target in {**no_files, "notes.txt": "nothing", "circle": "circle"}.items():
        (folder / name).symlink_to(target)
    (folder / "closed").mkdir()

    def refusing(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = catalog(home)
    for name in ("a", "b"):
        put(folder, f"{name}.gguf")  # The folder is read again.
        assert found.find("mine").path == folder / "mine.gguf"
    lines = [record.getMessage().removeprefix(f"{folder}/") for record in caplog.records]
    skipped = {name.replace("\n", "?"): "it is neither a file nor a link to one" for name in (*no_files, "pipe.gguf")}
    skipped.update(circle=os.strerror(errno.ELOOP), closed="Permission denied")
    assert sorted(lines) == sorted(f"{name} is skipped: {problem}" for name, problem in skipped.items())


@pytest.mark.parametrize(
    "file",
    [" .gguf", ".gguf", "a.gguf.gguf", "-m.gguf", "UPPER.GGUF", " a b .gguf", "a\x1b[2J\n.gguf", "n" * 250 + ".gguf"],
)
def test_listed_name_finds_its_file(tmp_path, file):
    put(tmp_path, file, "a.gguf")
    found = catalog(tmp_path, tmp_path)
    model = next(model for model in found.models() if model.path == tmp_path / file)
    assert model.name.isprintable()
    assert found.find(model.name) == model


def test_file_of_the_name_of_the_built_in_model_leaves_it_another_one(tmp_path):
    put(tmp_path, "demo.gguf")
    found = catalog(tmp_path, tmp_path)
    assert found.find("demo").path == tmp_path / "demo.gguf"
    assert found.find("built-in/demo").path == DEMO_PATH
    assert [model.name for model in found.models()] == ["demo", "built-in/demo"]


# --- headers ---


def header(tensors=TENSORS, **texts):
    """A file whose header has these texts of the model, with underscores for dots in their names."""
    return file_of([(f"general.{key.replace('__', '.')}", STRING, text) for key, text in texts.items()], tensors)


def adapter_for(architecture, base=""):
    return header(architecture=architecture, type="adapter", **({"base_model__0__name": base} if base else {}))


def test_adapters_beside_a_model_are_found_by_their_headers(home):
    """For the name of their base, if they have one, or else in the folder of the only model."""
    folder, model = home / "adapted", header(architecture="llama")
    for name, data in {
        "one/mine-Q8_0": model, "one/sql": adapter_for("llama"), "one/poet": adapter_for("llama", "Mine"),
        "one/x": adapter_for("qwen2"), "one/y": adapter_for("llama", "Yours"),
        "two/first": header(architecture="llama", name="First Model"), "two/other": model,
        "two/sql": adapter_for("llama", "first-model-Q4_K_M"), "two/tax": adapter_for("llama", "first-model-Q4_K_M"),
        "two/z": adapter_for("llama"),
    }.items():  # fmt: skip
        put(folder, f"{name}.gguf", data=data)
    found = catalog(home, folder)
    names = {model.name: [one.name for one in model.adapters] for model in found.models() if model.adapters}
    # A name that an adapter of an earlier model has keeps its meaning.
    assert names == {"mine-Q8_0": ["poet", "sql"], "first": ["tax"]}
    assert found.find("POET").name == "mine-Q8_0"
    (folder / "one/poet.gguf").unlink()
    put(folder, "one/new.gguf", data=adapter_for("llama"))
    assert [one.name for one in found.find("new").adapters] == ["new", "sql"]


def loaded(home, model, *arguments):
    """What a server loads for a name in a mapping file that has only this model."""
    (home / "models.json").write_text(json.dumps({"tiny": {"path": str(DEMO_PATH), **model}}))
    options = read_options(["tiny", "--models", str(home / "models.json"), *arguments])
    return load_options(chosen_model(options, Catalog(options.models_dir, options.models)), options)


def test_settings_of_a_mapping_file_apply_unless_the_command_line_sets_them(tmp_path):
    settings = loaded(tmp_path, {"ctx": 512, "parallel": 2}, "--ctx", "1024")
    assert (settings.n_ctx, settings.n_parallel) == (1024, 2)


def test_adapters_of_a_mapping_file(home):
    path = str(home / "sql.gguf")
    given = {"adapters": {"sql": "sql.gguf", "half": "sql.gguf@0.5"}}, f"--lora=more={path}@2"
    put(home, "sql.gguf", data=adapter_for("localchat"))
    with pytest.raises(ModelFileError, match="it is for the architecture 'localchat', the model has 'llama'"):
        loaded(home, *given)
    put(home, "sql.gguf", data=adapter_for("llama"))
    expected = (Adapter("more", path, 2.0), Adapter("sql", path), Adapter("half", path, 0.5))
    assert loaded(home, *given).adapters == expected
    assert "half" in run_command("--list", "--models", str(home / "models.json")).stdout


def test_files_beside_the_only_model_are_told_by_their_headers(tmp_path):
    folder, llama = tmp_path / MODELS, {"architecture": "llama"}
    for name, data in {
        "lora": header((), type="adapter", **llama), "vision": header((), architecture="clip"),
        "projector": header((), type="mmproj"), "matrix": header((), type="imatrix"),
        "vector": header((), architecture="controlvector"), "only-words": header((), type="model", **llama),
        "my-mmproj-vocab-model": header(type="model", **llama), "cut": b"GGUF",
    }.items():  # fmt: skip
        put(folder, f"{name}.gguf", data=data)
    found = catalog(tmp_path)
    assert [model.name for model in found.models()] == ["cut", "my-mmproj-vocab-model", "demo"]
    assert found.default().name == "my-mmproj-vocab-model"
    (folder / "cut.gguf").unlink()
    assert model_at(str(folder)).name == "my-mmproj-vocab-model"
    done = run_command(str(folder / "lora.gguf"))
    assert (done.returncode, "lora.gguf: it is an adapter (LoRA) for a model, not a model" in done.stderr) == (1, True)
    put(folder, "lora.gguf", data=header(**llama))
    os.utime(folder / "lora.gguf", (1, 1))
    assert found.find("lora")


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("general.file_type", STRING, "7" * 5000), ("general.file_type", ARRAY, (4, [1])), ("general.type", 4, 1),
        ("general.file_type", 11, -1), ("general.architecture", 4, 1), ("llama.context_length", STRING, "4096"),
        ("general.architecture", ARRAY, (STRING, ["llama"])), ("general.architecture", STRING, "x\n" * 20_000),
        ("llama.context_length", 7, True), ("llama.context_length", 5, -5), ("llama.context_length", 10, 2**64 - 1),
        ("general.parameter_count", 6, math.inf),
    ],
)  # fmt: skip
def test_value_of_a_header_that_no_reader_expects_is_unknown(tmp_path, key, kind, value):
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of([("general.architecture", STRING, "llama"), (key, kind, value)], TENSORS))
    found = summary_of(ModelFile(path, "model"))
    assert (found.quantisation, found.n_ctx_train, found.n_params, found.problem) == ("", 0, 0, "")
    assert len(found.architecture) <= 60
    assert "\n" not in found.architecture


def test_time_to_list_models_is_linear_in_their_number(tmp_path):
    def seconds(n: int) -> float:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        put(folder, *(f"model-{i}.gguf" for i in range(n)))
        found = catalog(tmp_path, folder)
        began_at = time.thread_time()
        assert len(found.models()) == n + 1
        return time.thread_time() - began_at

    assert_linear(seconds, 150, 10, 0.002)


def test_error_names_some_of_many_files(tmp_path):
    put(tmp_path / "many", *(f"model-{i}.gguf" for i in range(300)))
    found = catalog(tmp_path, tmp_path / "many")
    with pytest.raises(ModelFileError, match=r"and \d+ more"):
        found.find("zzzzzz")


def test_error_of_the_machine_is_a_problem_in_the_list_while_it_lasts(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    model = ModelFile(path, "model")
    assert summary_of(model).problem == os.strerror(errno.ENOENT)
    path.write_bytes(file_of([], TENSORS))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert summary_of(model).problem == "Too many open files"
    assert summary_of(model).problem == ""


def test_list_shows_each_model_with_where_it_was_found(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    lines = {line.split()[0]: line for line in run_command("--list").stdout.splitlines()}
    assert {"NAME", "mine", "big", "org/one-GGUF", "org/two-GGUF:Q8_0", "llama3.2:1b", "demo"} <= set(lines)
    assert "Hugging Face" in lines["org/one-GGUF"]
    assert all(text in lines["demo"] for text in ("Q5_1", "4,096", "built-in"))
    assert "not a GGUF file" in lines["mine"]


# --- paths ---


def test_path_on_the_command_line_is_that_of_a_folder_with_one_model_or_of_any_part(tmp_path, monkeypatch):
    put(tmp_path, "one/tiny.gguf", "none/notes.txt", *(f"parts/{part}" for part in PARTS))
    (tmp_path / "one/link.gguf").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    found, first = catalog(tmp_path), f"parts/{PARTS[0]}"
    for argument, path in (("one", "one/tiny.gguf"), ("parts", first), (f"parts/{PARTS[1]}", first)):
        assert found.find(argument, takes_paths=True).path.absolute() == tmp_path / path
    for argument, message in {
        "no.gguf": r"there is no file .*no\.gguf; --list shows the models of this machine",
        "one/tyni.gguf": r"there is no file .*tyni\.gguf; did you mean one.tiny\.gguf\?",
        "no/no.gguf": r"there is no file .*no\.gguf; there is no folder .*no, either",
        "no\n.gguf": r"there is no file no\?\.gguf; ",
        "one/link.gguf": r"^one.link\.gguf is neither a file nor a link to one",
        "none": "folder without a model",
        "https://example.org/m.gguf": "is a URL.*downloads nothing.*curl -LO https://example.org/m.gguf",
    }.items():
        with pytest.raises(ModelFileError, match=message):
            found.find(argument, takes_paths=True)


def test_folder_with_several_models_lists_them_with_their_sizes(tmp_path):
    put(tmp_path, "a.gguf")
    put(tmp_path, "b.gguf", data=bytes(12_000_000))
    put(tmp_path, *PARTS, data=bytes(1_500_000))
    with pytest.raises(ModelFileError) as refused:
        model_at(str(tmp_path))
    sizes = {"a.gguf": "0 MB", "b.gguf": "12 MB", PARTS[0]: "3 MB"}
    lines = [f"{tmp_path} holds 3 models, choose one:", *(f"  {tmp_path / name}  {n}" for name, n in sizes.items())]
    assert str(refused.value).splitlines() == lines


def test_folder_that_is_not_there_ends_the_start(tmp_path: Path):
    """Otherwise the built-in model would be served in place of those of a folder with a mistake in its name."""
    for path in (tmp_path / "models", DEMO_PATH):
        done = run_command("--models-dir", str(path))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"--models-dir: there is no folder {path}" in done.stderr
