"""Runs a GGUF file through llama.cpp, one prompt at a time, with the chat template of the file."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .template import compile_template

# libgomp reads these variables when llama.cpp is loaded. Spinning threads would take the cores from other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import llama_cpp.llama_cpp as L  # After the variables above are set.

_N_CTX = 4096
_BATCH = 512
_TOP_K = 40


class Request(NamedTuple):
    """A conversation that the model continues."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    # The template variable `enable_thinking`; None if it is not set.
    thinking: bool | None


@dataclass(frozen=True)
class Completion:
    """The output of the model."""

    text: str
    # Whether the model generated an end-of-generation token.
    stopped: bool


@L.llama_log_callback
def _no_log(level: int, text: bytes, data: Any) -> None:
    """Drop llama.cpp's log lines."""


class LlamaRunner:
    """One model and one sequence."""

    def __init__(self, path: Path) -> None:
        L.llama_log_set(_no_log, ctypes.c_void_p(0))
        L.llama_backend_init()
        model_params = L.llama_model_default_params()
        # Weights that are repacked for AMX crash the process on a virtual machine that announces AMX and lacks it.
        model_params.use_extra_bufts = False
        self._model = L.llama_model_load_from_file(str(path).encode(), model_params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}: is it a GGUF file?")
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = _N_CTX, _BATCH, _BATCH
        params.n_threads = params.n_threads_batch = 1
        self._context = L.llama_init_from_model(self._model, params)
        self._vocab = L.llama_model_get_vocab(self._model)
        self._n_vocab = L.llama_vocab_n_tokens(self._vocab)
        self._template = compile_template(L.llama_model_chat_template(self._model, None).decode())

    def __enter__(self) -> LlamaRunner:
        return self

    def __exit__(self, *_: object) -> None:
        L.llama_free(self._context)
        L.llama_model_free(self._model)

    def generate(self, request: Request, max_tokens: int, temperature: float, seed: int) -> tuple[str, Completion]:
        """The prompt, and the completion. At temperature 0 decoding is greedy, else it samples from the top 40."""
        prompt = self._render(request)
        rng = np.random.default_rng(seed)
        L.llama_memory_clear(L.llama_get_memory(self._context), False)
        self._decode(self._tokenize(prompt))
        text, stopped = b"", False
        for _ in range(max_tokens):
            token = self._sample(temperature, rng)
            if L.llama_vocab_is_eog(self._vocab, token):
                stopped = True
                break
            text += self._piece(token)
            self._decode([token])
        return prompt, Completion(text.decode("utf-8", "replace"), stopped)

    def _render(self, request: Request) -> str:
        variables = {} if request.thinking is None else {"enable_thinking": request.thinking}
        return self._template.render(
            messages=request.messages, tools=request.tools, add_generation_prompt=True, **variables
        )

    def _tokenize(self, text: str) -> list[int]:
        """The token ids of rendered text. Special tokens are parsed."""
        data = text.encode("utf-8")
        buffer = (L.llama_token * (len(data) + 8))()
        n = L.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), False, True)
        return list(buffer[:n])

    def _decode(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), _BATCH):
            part = tokens[start : start + _BATCH]
            array = (L.llama_token * len(part))(*part)  # The batch has only a pointer to this array.
            code = L.llama_decode(self._context, L.llama_batch_get_one(array, len(part)))
            if code:
                raise RuntimeError(f"llama_decode returned {code} for {len(part)} tokens, context {_N_CTX}")

    def _sample(self, temperature: float, rng: np.random.Generator) -> int:
        pointer = L.llama_get_logits_ith(self._context, -1)
        logits = np.ctypeslib.as_array(pointer, (self._n_vocab,))
        if temperature == 0:
            return int(logits.argmax())
        best = np.argpartition(logits, -_TOP_K)[-_TOP_K:]
        scores = np.exp((logits[best] - logits[best].max()) / temperature)
        return int(rng.choice(best, p=scores / scores.sum()))

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        n = L.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:n]
