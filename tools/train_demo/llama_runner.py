"""Runs a GGUF file through llama.cpp, one prompt at a time, and renders with its own chat template."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .template import compile_template

# libgomp reads these when llama.cpp is loaded; spinning threads would starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import llama_cpp.llama_cpp as L  # after the settings above

_BATCH = 512
_TOP_K = 40


class Question(NamedTuple):
    """A conversation that the model goes on with; `thinking` None leaves that to the template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool | None


@dataclass(frozen=True)
class Completion:
    """What the model wrote, and whether it ended by itself."""

    text: str
    stopped: bool


@L.llama_log_callback
def _no_log(level: int, text: bytes, data: Any) -> None:
    """Takes llama.cpp's log lines and drops them."""


class LlamaRunner:
    """One model and one sequence."""

    def __init__(self, path: Path, context: int = 4096, threads: int = 1) -> None:
        L.llama_log_set(_no_log, ctypes.c_void_p(0))
        L.llama_backend_init()
        model_params = L.llama_model_default_params()
        # Weights repacked for AMX kill the process where a virtual machine only announces AMX.
        model_params.use_extra_bufts = False
        self._model = L.llama_model_load_from_file(str(path).encode(), model_params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}: is it a GGUF file?")
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, _BATCH, _BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = L.llama_init_from_model(self._model, params)
        self._vocab = L.llama_model_get_vocab(self._model)
        self._n_vocab = L.llama_vocab_n_tokens(self._vocab)
        self.n_ctx = L.llama_n_ctx(self._context)
        self.template = compile_template(L.llama_model_chat_template(self._model, None).decode())

    def __enter__(self) -> LlamaRunner:
        return self

    def __exit__(self, *_: object) -> None:
        L.llama_free(self._context)
        L.llama_model_free(self._model)

    def answer(self, question: Question, max_tokens: int, temperature: float, seed: int) -> tuple[str, Completion]:
        """The prompt, and how the model goes on."""
        prompt = self.render(question.messages, question.tools, question.thinking)
        return prompt, self.complete(prompt, max_tokens, temperature, np.random.default_rng(seed))

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool | None) -> str:
        """The prompt up to where the model goes on."""
        variables: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        return self.template.render(messages=messages, tools=tools, add_generation_prompt=True, **variables)

    def tokenize(self, text: str) -> list[int]:
        """Ids of rendered text, special tokens included."""
        data = text.encode("utf-8")
        buffer = (L.llama_token * (len(data) + 8))()
        n = L.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), False, True)
        return list(buffer[:n])

    def _decode(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), _BATCH):
            part = tokens[start : start + _BATCH]
            array = (L.llama_token * len(part))(*part)  # the batch only points at it
            code = L.llama_decode(self._context, L.llama_batch_get_one(array, len(part)))
            if code:
                raise RuntimeError(f"llama_decode returned {code} for {len(part)} tokens, context {self.n_ctx}")

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        n = L.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:n]

    def complete(
        self, prompt: str, max_tokens: int = 200, temperature: float = 0.0, rng: np.random.Generator | None = None
    ) -> Completion:
        """Continue the prompt; the likeliest token each time at temperature 0, else from the top 40."""
        L.llama_memory_clear(L.llama_get_memory(self._context), False)
        self._decode(self.tokenize(prompt))
        text, stopped = b"", False
        for _ in range(max_tokens):
            pointer = L.llama_get_logits_ith(self._context, -1)
            logits = np.ctypeslib.as_array(pointer, (self._n_vocab,))
            token = int(logits.argmax())
            if temperature > 0 and rng is not None:
                best = np.argpartition(logits, -_TOP_K)[-_TOP_K:]
                scores = np.exp((logits[best] - logits[best].max()) / temperature)
                token = int(rng.choice(best, p=scores / scores.sum()))
            if L.llama_vocab_is_eog(self._vocab, token):
                stopped = True
                break
            text += self._piece(token)
            self._decode([token])
        return Completion(text.decode("utf-8", "replace"), stopped)
