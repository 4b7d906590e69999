"""Images and sound on llama.cpp, with random projectors beside the built-in model and a model with M-RoPE."""

import base64
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localchat.serving.core.errors import BadRequest
from localchat.serving.core.media import AUDIO, IMAGE, MediaFile
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama import context_size
from localchat.serving.engine.llama.library import L, mtmd
from localchat.serving.engine.media.decoding import decode
from localchat.serving.engine.values import EngineError, LoadOptions
from localchat.serving.models.memory import NotEnoughMemory
from localchat.serving.models.model_file import DEMO_PATH, ModelFile, summary_of
from tests.serving.engine.test_media_decoding import BAD
from tests.support.demo_model import DEMO, GREEDY, ROUNDING
from tests.support.documents import run
from tests.support.engines import Generation, request_for, submit, tokens_of
from tests.support.exchanges import ask as ask_server
from tests.support.live import running_process
from tests.support.media_files import bmp, flac, gif, jpeg, mp3, png, wav
from tests.support.tiny_models import write_mrope, write_projector, write_sliding

# Log probabilities of equal requests differ by less, those of a wrong position or attention by more.
SAME = 0.05
A, B = (MediaFile(IMAGE, png(100, 80, seed), "p") for seed in (1, 2))
SOUND = MediaFile(AUDIO, wav(seed=2), "p")


@pytest.fixture(scope="module", params=["not causal", "M-RoPE", "both", "window"])
def files(request: Any, tmp_path_factory: Any) -> tuple[str, str]:
    """A model and a projector."""
    folder: Path = tmp_path_factory.mktemp("media")
    model, projector = folder / "model.gguf", folder / "mmproj.gguf"
    if request.param == "M-RoPE":
        write_mrope(model)
    elif request.param == "window":
        write_sliding(model, n_window=64)
    else:
        model = DEMO_PATH
    kinds = {"M-RoPE": ["qwen2vl_merger"], "both": ["gemma3", "ultravox"]}.get(request.param, ["gemma3"])
    write_projector(projector, *kinds, width=width_of(model))
    return str(model), str(projector)


@pytest.fixture(scope="module")
def engine(files: tuple[str, str]) -> Iterator[Engine]:
    model, projector = files
    with load(model, LoadOptions(n_parallel=8, n_ctx=1024, mmproj=projector, n_threads=1)) as engine:
        yield engine


def width_of(model: Path) -> int:
    return summary_of(ModelFile(model, "")).width


def media_of(engine: Engine) -> list[MediaFile]:
    """Two images of the same size, or an image and a sound if the model can take both."""
    return [A, SOUND if "audio" in engine.facts.modalities else B]


def test_image_is_refused_from_one_cell_more_than_a_pass_on(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    projector = engine.backend.projector  # type: ignore[attr-defined]
    [chunk] = [item for item in projector.prompt_items(A) if not isinstance(item, int)]
    monkeypatch.setattr(projector, "_max_pass", chunk.n_cells)
    assert len(projector.prompt_items(A)) >= 1
    monkeypatch.setattr(projector, "_max_pass", chunk.n_cells - 1)
    if chunk.is_causal:
        assert len(projector.prompt_items(A)) >= 1
    else:
        with pytest.raises(BadRequest, match=f"takes {chunk.n_cells} tokens, the limit .* is {chunk.n_cells - 1}"):
            projector.prompt_items(A)


def ask(engine: Engine, *parts: Any, **options: Any) -> Generation:
    prompt = tuple(part if isinstance(part, MediaFile) else (part, True) for part in parts)
    return submit(engine, request_for(prompt, **{"sampling": GREEDY, "max_tokens": 12, "ignore_eos": True, **options}))


def scored(generation: Generation) -> tuple[list[int], list[float], int]:
    """The tokens, their log probabilities, and how many tokens of the prompt were cached."""
    *items, finish = generation
    tokens = tokens_of(items)
    return [token.id for token in tokens], [token.logprob for token in tokens], finish.usage.n_cached


def completion(engine: Engine, *parts: Any, **options: Any) -> tuple[list[int], list[float], int]:
    return scored(ask(engine, *parts, top_logprobs=0, **options))


def reference(engine: Engine, *parts: Any) -> Any:
    """The log probabilities after a prompt, by libmtmd's own functions in a context of its own."""
    library, projector = mtmd(), engine.backend.projector  # type: ignore[attr-defined]
    model = projector._model.pointer
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 1024, 512, 512, 1
    context = L.llama_init_from_model(model, params)
    given = []
    for part in parts:
        if isinstance(part, MediaFile):
            bitmap = projector._bitmap(decode(part, projector._sample_rate))
            given.append(library.mtmd_input_part(text=None, bitmap=bitmap))
        else:
            text = library.mtmd_input_text(part.encode(), len(part.encode()), False, True)
            given.append(library.mtmd_input_part(text=ctypes.pointer(text), bitmap=None))
    pointers = (ctypes.POINTER(library.mtmd_input_part) * len(given))(*map(ctypes.pointer, given))
    chunks, n_past = library.mtmd_input_chunks_init(), L.llama_pos()
    assert library.mtmd_tokenize_from_parts(projector._context, chunks, pointers, len(given), False) == 0
    options = 0, 0, params.n_batch, True, ctypes.byref(n_past)
    assert library.mtmd_helper_eval_chunks(projector._context, context, chunks, *options) == 0
    logits = np.ctypeslib.as_array(L.llama_get_logits_ith(context, -1), (engine.facts.n_vocab,)).astype(np.float64)
    logits -= logits.max()
    library.mtmd_input_chunks_free(chunks)
    L.llama_free(context)
    return logits - np.log(np.exp(logits).sum())


# The texts of requests with a seed do not depend on cached prefixes.
SEEDED = SamplingParams(temperature=0, seed=1)


def test_log_probabilities_are_those_of_libmtmd(engine: Engine):
    one, two = media_of(engine)
    for parts in (("see ", one, " and?"), ("see ", one, " and then ", two, "what is it?"), (two, one, "?")):
        expected = reference(engine, *parts)
        engine.forget()
        for _ in range(2):  # computed, and from the cached prefix
            generation = ask(engine, *parts, top_logprobs=20, max_tokens=1, sampling=SEEDED)
            top = tokens_of(generation)[0].top
            assert len(top) == 20
            assert max(abs(expected[token.id] - token.logprob) for token in top) < SAME


@pytest.mark.cpu_only
def test_greedy_texts_among_other_streams_are_those_alone(engine: Engine):
    one, two = media_of(engine)
    prompts = [("see ", one, " what?"), ("see ", two, " who?"), ("hello " * 20,), (one, "a", two, "b"), (two, "x" * 99)]
    alone = []
    for prompt in prompts:
        engine.forget()
        alone.append(completion(engine, *prompt)[0])
    engine.forget()
    streams = [ask(engine, f"number {i} ", max_tokens=60) for i in range(4)]
    asked = [ask(engine, *prompt, top_logprobs=0) for prompt in prompts]
    assert [scored(generation)[0] for generation in asked] == alone
    for stream in streams:
        assert len(scored(stream)[0]) == 60


def test_prefix_is_found_by_content(engine: Engine):
    one, two = media_of(engine)
    engine.forget()
    sampling = SamplingParams(seed=1, top_k=1)
    prompt = engine.prompts.tokenize_prompt([("see ", True), one])
    cells = [i for i, token in enumerate(prompt) if token < 0]
    n_image = cells[-1] + 1
    tokens, _, n_cached = completion(engine, "see ", one, " what?", sampling=sampling)
    assert n_cached == 0
    again, _, n_cached = completion(engine, "see ", one, " what?", sampling=sampling)
    assert again == tokens
    assert n_cached >= n_image
    assert completion(engine, "see ", one, " and now?", sampling=sampling)[2] >= n_image
    assert completion(engine, "see ", two, " what?", sampling=sampling)[2] <= cells[0]


def test_preempted_requests_go_on(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    model, projector = files
    # The sequences share the cells, and these are fewer than all four take.
    monkeypatch.setattr(context_size, "SMALL_CACHE_BYTES", 0)
    monkeypatch.setattr(context_size, "LIKELY_TOKENS", 128)
    options = LoadOptions(n_parallel=4, n_ctx=512, mmproj=projector, n_threads=1)
    with load(model, options) as small:
        assert small.facts.n_cells == 512
        one, two = media_of(small)
        prompts = [("see ", one, " what?"), ("look ", two, " who?"), ("see ", one, two, "a"), ("x", two, "b")]
        alone = [completion(small, *prompt, max_tokens=1)[1][0] for prompt in prompts]
        small.forget()
        asked = [ask(small, *prompt, max_tokens=120, top_logprobs=0) for prompt in prompts]
        together = [scored(generation) for generation in asked]
        assert [len(tokens) for tokens, *_ in together] == [120] * 4
        # The cells are shared, so the rows of other sequences change how a sum is rounded.
        assert [logprobs[0] for _, logprobs, _ in together] == pytest.approx(alone, abs=ROUNDING)


def test_cancelled_request_ends(engine: Engine):
    one, _ = media_of(engine)
    generation = ask(engine, "cancelled ", one, "?", max_tokens=900)
    generation.cancel()
    assert list(generation) == []
    assert len(completion(engine, one, "?")[0]) == 12


FILES = {
    IMAGE: [png(), bmp(), gif(), jpeg(), png(1, 1), png(1, 3000), png(3000, 1)],
    AUDIO: [wav(), wav(0.1), mp3(), flac(), wav(rate=48_000, n_channels=2), wav(31, rate=8000)],
}


def test_image_that_libmtmd_does_not_encode_ends_its_request_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """It returns 1 if the computation failed, as for lack of memory."""
    image = MediaFile(IMAGE, png(100, 80, seed=3), "p")
    with monkeypatch.context() as patched:
        patched.setattr(mtmd(), "mtmd_encode_chunk", lambda context, chunk: 1)
        with pytest.raises(EngineError, match=r"could not encode it \(code 1\)"):
            completion(engine, image, "?")
    assert len(completion(engine, image, "?")[0]) == 12


def test_all_formats_are_taken(engine: Engine):
    for modality, kind in (("image", IMAGE), ("audio", AUDIO)):
        for data in FILES[kind] if modality in engine.facts.modalities else ():
            assert len(completion(engine, MediaFile(kind, data, "p"), "?", max_tokens=2)[0]) == 2


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: write_projector(path, "gemma3", width=64), r"mmproj.gguf. is no projector .*n_embd = 64.*alone$"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(100)), "is no projector for this model"),
        (lambda path: None, "there is no projector"),
    ],
    ids=["another width", "damaged", "missing"],
)
def test_other_projector_is_refused_when_the_model_is_loaded(write: Any, expected: str, tmp_path: Path):
    path = tmp_path / "mmproj.gguf"
    write(path)
    with pytest.raises(EngineError, match=expected):
        load(DEMO, LoadOptions(n_ctx=512, mmproj=str(path)))


def test_projector_that_does_not_fit_beside_the_model_is_refused_with_the_reason(tmp_path: Path):
    projector = tmp_path / "mmproj.gguf"
    write_projector(projector, "gemma3", width=width_of(DEMO_PATH))
    with open(projector, "r+b") as file:
        file.truncate(1 << 42)  # without blocks on the disk
    with pytest.raises(NotEnoughMemory, match="the weights take 4 MB, and 0 MB are free beside its projector"):
        load(DEMO, LoadOptions(n_ctx=512, mmproj=str(projector)))


def test_server_of_a_text_model_imports_nothing_for_media():
    program = rf"""
import re, sys
from localchat.serving.engine import load, values
with load({DEMO!r}, values.LoadOptions(n_ctx=512)):
    print([name for name in sys.modules if re.search(r"media\.|mtmd|PIL|soundfile", name)])
"""
    assert run([sys.executable, "-c", program]).stdout == "[]\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: Any) -> Iterator[int]:
    """The port of a server that takes images and sound."""
    projector = tmp_path_factory.mktemp("server") / "mmproj.gguf"
    write_projector(projector, "gemma3", "ultravox", width=width_of(DEMO_PATH))
    with running_process("demo", "--mmproj", str(projector), "-c", "2048", "--threads", "1") as server:
        yield server.port


def part_of(media: MediaFile) -> dict[str, Any]:
    text = base64.b64encode(media.data).decode()
    if media.kind == IMAGE:
        return {"type": "image_url", "image_url": {"url": f"data:;base64,{text}"}}
    return {"type": "input_audio", "input_audio": {"data": text}}


def chat(port: int, *media: MediaFile) -> tuple[int, Any]:
    content = [*map(part_of, media), {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return ask_server(port, "/v1/chat/completions", body)


def test_server_takes_images_and_sound(port: int):
    bodies = [chat(port, *media) for media in ((A,), (A, SOUND), ())]
    assert [status for status, _ in bodies] == [200] * 3
    n_image, n_both, n_text = (body["usage"]["prompt_tokens"] for _, body in bodies)
    assert n_text + 4 < n_image < n_both - 100
    again = chat(port, A)[1]
    assert again["choices"] == bodies[0][1]["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 4


def test_bad_file_is_an_error_of_its_request_alone(port: int):
    for kind, data, _ in BAD.values():
        status, body = chat(port, MediaFile(kind, data, "p"))
        assert (status, body["error"]["param"]) == (400, "messages[0].content[0]")
    assert chat(port, B)[0] == 200
