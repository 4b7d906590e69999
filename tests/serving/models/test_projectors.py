"""The projector of a model is found beside it, named by a source of models, or given by an option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localchat.server import chosen_model, main, read_options
from localchat.serving.loading.loader import load_options
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import ModelFile, projector_of, summary_of
from tests.support.media_files import write_gguf

WIDTH = 64
_FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}
TENSOR: dict[str, Any] = {"a": [1.0]}


def write(path: Path, architecture: str, values: dict[str, Any]) -> Path:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(path, architecture, values, {"a": np.ones(1, np.float32)})
    return path


def write_model(path: Path, width: int = WIDTH) -> Path:
    return write(path, "llama", {"llama.embedding_length": width, "llama.context_length": 2048})


def write_mmproj(path: Path, width: int = WIDTH, *, kind: str = "F16", parts: tuple[str, ...] = ("vision",)) -> Path:
    values: dict[str, Any] = {"general.file_type": _FILE_TYPES[kind]}
    for part in parts:
        values.update({f"clip.has_{part}_encoder": True, f"clip.{part}.projection_dim": width})
    return write(path, "clip", values)


def found(model: Path) -> str | None:
    projector = projector_of(ModelFile(model, ""))
    return None if projector is None else projector.name


@pytest.mark.parametrize(
    ("model", "projector", "is_found"),
    [
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-4b-it-f16.gguf", True),
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-model-f16.gguf", True),
        ("gemma-3-4b-it-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", True),
        ("Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-VL-7B-Instruct-mmproj-f16.gguf", True),
        ("Qwen2.5-VL-7B-Instruct-q4_0-00001-of-00002.gguf", "mmproj-Qwen2.5-VL-7B-Instruct-Q8_0.gguf", True),
        ("mistral-7b-Q4_K_M.gguf", "mmproj-llava-1.6-f16.gguf", False),
    ],
)
def test_projector_in_the_folder_is_found_by_its_name(tmp_path: Path, model: str, projector: str, is_found: bool):
    write_mmproj(tmp_path / projector)
    assert found(write_model(tmp_path / model)) == (projector if is_found else None)


def test_projector_without_a_name_belongs_to_the_only_model_of_its_folder(tmp_path: Path):
    write_mmproj(tmp_path / "mmproj-F16.gguf")
    models = [write_model(tmp_path / name) for name in ("one-Q4_K_M.gguf", "one-Q8_0.gguf")]
    assert [found(model) for model in models] == ["mmproj-F16.gguf"] * 2
    write_model(tmp_path / "two-Q8_0.gguf")
    assert [found(model) for model in models] == [None] * 2


def test_projector_for_another_width_and_other_files_are_none(tmp_path: Path):
    model = write_model(tmp_path / "one.gguf")
    write_mmproj(tmp_path / "mmproj-one.gguf", 128)
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (tmp_path / "mmproj-one-f16.gguf").write_text("<html>")
    assert found(model) is None
    assert found(tmp_path / "missing" / "one.gguf") is None


def test_projector_beside_the_folder_of_a_quantisation_is_found(tmp_path: Path):
    model = write_model(tmp_path / "Q4_K_M" / "one-Q4_K_M-00001-of-00002.gguf")
    write_mmproj(tmp_path / "mmproj-F16.gguf")
    assert found(model) == "mmproj-F16.gguf"
    assert found(write_model(tmp_path / "other" / "one.gguf")) is None


def test_unquantised_projector_is_preferred(tmp_path: Path):
    model = write_model(tmp_path / "one.gguf")
    for kind in ("Q8_0", "BF16", "F32"):
        write_mmproj(tmp_path / f"mmproj-one-{kind}.gguf", kind=kind)
    assert found(model) == "mmproj-one-BF16.gguf"
    write_mmproj(tmp_path / "mmproj-one-F16.gguf")
    assert found(model) == "mmproj-one-F16.gguf"


def test_projector_is_no_model_and_says_what_it_takes(tmp_path: Path):
    path = write_mmproj(tmp_path / "mmproj.gguf", parts=("vision", "audio"))
    summary = summary_of(ModelFile(path, ""))
    assert (summary.is_model, summary.width, summary.modalities) == (False, WIDTH, ("image", "audio"))


def test_ollama_names_the_projector_of_a_model(tmp_path: Path):
    models = tmp_path / ".ollama" / "models"
    digests = {"model": "a" * 64, "projector": "b" * 64}
    write_model(models / "blobs" / f"sha256-{digests['model']}")
    write_mmproj(models / "blobs" / f"sha256-{digests['projector']}")
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        for kind, digest in digests.items()
    ]
    manifest = models / "manifests/registry.ollama.ai/library/llava/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": layers}))
    catalog = Catalog((), None, {"HOME": str(tmp_path)})
    assert projector_of(catalog.find("llava")) == models / "blobs" / f"sha256-{digests['projector']}"


def test_lm_studio_and_hugging_face_have_it_beside_the_model(tmp_path: Path):
    studio = tmp_path / ".lmstudio/models/org/vision-GGUF"
    hub = tmp_path / ".cache/huggingface/hub/models--org--eyes-GGUF/snapshots/c0ffee"
    for folder, name in ((studio, "vision"), (hub, "eyes")):
        write_model(folder / f"{name}-Q4_K_M.gguf")
        write_mmproj(folder / f"mmproj-{name}-F16.gguf")
    catalog = Catalog((), None, {"HOME": str(tmp_path)})
    models = [catalog.find("org/vision-GGUF"), catalog.find("org/eyes-GGUF")]
    assert [projector_of(model) for model in models] == [
        studio / "mmproj-vision-F16.gguf",
        hub / "mmproj-eyes-F16.gguf",
    ]


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


def test_list_shows_what_a_model_takes(tmp_path: Path, capsys: Any):
    write_model(tmp_path / "one-Q4_K_M.gguf")
    write_mmproj(tmp_path / "mmproj-one-F16.gguf", parts=("vision", "audio"))
    write_model(tmp_path / "two.gguf")
    assert main(["--list", "--models-dir", str(tmp_path)]) == 0
    head, one, two, *_ = capsys.readouterr().out.splitlines()
    assert "INPUT" in head
    assert "text, image, audio  models folder" in one
    assert "text                models folder" in two
