"""The projector of a model is found beside it, named by a source of models, or given by an option."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from localchat.server import chosen_model, read_options
from localchat.serving.loading.loader import load_options
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import ModelFile, projector_of, summary_of
from tests.serving.models.test_gguf import STRING, TENSORS, file_of
from tests.serving.models.test_models import put
from tests.support.command import run_command
from tests.support.growth import assert_linear

WIDTH = 64
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}


def write(path: Path, architecture: str, values: dict[str, int | bool]) -> Path:
    metadata = [(name, 7 if isinstance(value, bool) else 4, value) for name, value in values.items()]
    put(path.parent, path.name, data=file_of([("general.architecture", STRING, architecture), *metadata], TENSORS))
    return path


def write_model(path: Path, width: int = WIDTH) -> Path:
    return write(path, "llama", {"llama.embedding_length": width, "llama.context_length": 2048})


def write_mmproj(path: Path, width: int = WIDTH, *, kind: str = "F16", parts: tuple[str, ...] = ("vision",)) -> Path:
    values: dict[str, Any] = {"general.file_type": _FILE_TYPES[kind]}
    for part in parts:
        values.update({f"clip.has_{part}_encoder": True, f"clip.{part}.projection_dim": width})
    return write(path, "clip", values)


QWEN, GEMMA = "Qwen2.5-VL-7B-Instruct", "gemma-3-4b-it"
# By case: the models, of which the first one needs a projector, the projectors with the options of `write_mmproj`, and
# the projector that is found.
CASES: dict[str, tuple[list[str], dict[str, dict[str, Any]], str | None]] = {
    "name": ([f"{GEMMA}-Q4_K_M"], {f"mmproj-{GEMMA}-f16": {}}, f"mmproj-{GEMMA}-f16"),
    "name at the end": ([f"{QWEN}-Q4_K_M"], {f"{QWEN}-mmproj-f16": {}}, f"{QWEN}-mmproj-f16"),
    "part": ([f"{QWEN}-q4_0-00001-of-00002"], {f"mmproj-{QWEN}-Q8_0": {}}, f"mmproj-{QWEN}-Q8_0"),
    "another name": (["mistral-7b-Q4_K_M"], {"mmproj-llava-1.6-f16": {}}, None),
    "the word model": ([f"{GEMMA}-Q4_K_M"], {"mmproj-model-f16": {}}, "mmproj-model-f16"),
    "no name": ([f"{GEMMA}-UD-Q4_K_XL", f"{GEMMA}-Q8_0"], {"mmproj-F16": {}}, "mmproj-F16"),
    "no name, two models": (["one-Q4_K_M", "one-Q8_0", "two-Q8_0"], {"mmproj-F16": {}}, None),
    "another width": (["one"], {"mmproj-one": {"width": 128}}, None),
    "beside the folder of a quantisation": (["Q4_K_M/one-Q4_K_M-00001-of-00002"], {"mmproj-F16": {}}, "mmproj-F16"),
    "beside another folder": (["other/one"], {"mmproj-F16": {}}, None),
    "unquantised": (["one"], {f"mmproj-one-{kind}": {"kind": kind} for kind in _FILE_TYPES}, "mmproj-one-F16"),
    "no F16": (["one"], {f"mmproj-one-{kind}": {"kind": kind} for kind in ("Q8_0", "BF16", "F32")}, "mmproj-one-BF16"),
}


@pytest.mark.parametrize("case", CASES)
def test_projector_is_found_by_its_place_name_width_and_kind(tmp_path: Path, case: str):
    models, projectors, expected = CASES[case]
    for name, options in projectors.items():
        write_mmproj(tmp_path / f"{name}.gguf", **options)
    paths = [write_model(tmp_path / f"{name}.gguf") for name in models]
    found = projector_of(ModelFile(paths[0], ""))
    assert (found and found.stem) == expected


def test_other_files_are_no_projectors(tmp_path: Path):
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (tmp_path / "mmproj-one-f16.gguf").write_text("<html>")
    for path in (write_model(tmp_path / "one.gguf"), tmp_path / "missing" / "one.gguf"):
        assert projector_of(ModelFile(path, "")) is None


def test_time_to_find_the_projectors_of_a_folder_is_linear_in_its_models(tmp_path: Path):
    def seconds(n: int) -> float:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        paths = [folder / f"{i}.gguf" for i in range(n)]
        write_model(paths[0])
        for path in paths[1:]:
            os.link(paths[0], path)
        started = time.process_time()
        assert {projector_of(ModelFile(path, "")) for path in paths} == {None}
        return time.process_time() - started

    assert_linear(seconds, 20, 20, 0.01)


def test_projector_is_no_model_and_says_what_it_takes(tmp_path: Path):
    summary = summary_of(ModelFile(write_mmproj(tmp_path / "mmproj.gguf", parts=("vision", "audio")), ""))
    assert (summary.is_model, summary.width, summary.modalities) == (False, WIDTH, ("image", "audio"))


def test_quantisation_that_the_header_lacks_is_that_of_the_name(tmp_path: Path):
    for name, expected in (("one-q4_k_m", "Q4_K_M"), ("one", "")):
        assert summary_of(ModelFile(write_model(tmp_path / f"{name}.gguf"), "")).quantisation == expected


def test_ollama_names_the_projector_of_a_model(tmp_path: Path):
    models, kind = tmp_path / ".ollama/models", "application/vnd.ollama.image"
    digests = {"model": "a" * 64, "projector": "b" * 64}
    layers = [{"mediaType": f"{kind}.{name}", "digest": f"sha256:{digest}"} for name, digest in digests.items()]
    put(models / "manifests/registry.ollama.ai/library/llava", "latest", data=json.dumps({"layers": layers}).encode())
    write_model(models / f"blobs/sha256-{digests['model']}")
    projector = write_mmproj(models / f"blobs/sha256-{digests['projector']}")
    assert projector_of(Catalog((), None, {"HOME": str(tmp_path)}).find("llava")) == projector


def test_mapping_file_names_it(tmp_path: Path):
    write_model(tmp_path / "one.gguf")
    write_model(tmp_path / "two.gguf")
    projector = write_mmproj(tmp_path / "eyes" / "any.gguf")
    mapping = tmp_path / "models.json"
    mapping.write_text(json.dumps({"sees": {"path": "one.gguf", "mmproj": "eyes/any.gguf"}, "blind": "two.gguf"}))
    catalog = Catalog((), mapping, {"HOME": str(tmp_path / "home")})
    assert load_options(catalog.find("sees"), read_options([])).mmproj == str(projector)
    assert load_options(catalog.find("blind"), read_options([])).mmproj is None


def test_option_names_it_for_the_model_of_the_command_line_alone(tmp_path: Path):
    model, other = write_model(tmp_path / "one.gguf"), write_model(tmp_path / "other" / "two.gguf")
    beside = write_mmproj(tmp_path / "mmproj-one.gguf")
    named = write_mmproj(tmp_path / "other" / "mmproj.gguf", 1)
    catalog = Catalog((), None, {"HOME": str(tmp_path / "home")})

    def loaded(*arguments: str, path: Path = model) -> str | None:
        options = read_options([str(path), *arguments])
        return load_options(chosen_model(options, catalog), options).mmproj

    assert loaded() == str(beside)
    assert loaded("--mmproj", str(named)) == str(named)
    assert loaded("--no-mmproj") is None
    assert loaded(path=other) is None
    options = read_options([str(model), "--mmproj", str(named)])
    assert load_options(ModelFile(other, "two"), options).mmproj is None


def test_list_shows_what_a_model_takes(tmp_path: Path):
    write_model(tmp_path / "one-Q4_K_M.gguf")
    write_mmproj(tmp_path / "mmproj-one-F16.gguf", parts=("vision", "audio"))
    write_model(tmp_path / "two.gguf")
    head, one, two, *_ = run_command("--list", "--models-dir", str(tmp_path)).stdout.splitlines()
    assert "INPUT" in head
    assert "text, image, audio  models folder" in one
    assert "text                models folder" in two
