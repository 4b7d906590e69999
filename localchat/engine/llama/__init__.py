"""llama.cpp through llama-cpp-python's low-level API: the only place that imports llama_cpp."""

from .backend import LlamaBackend
from .load import default_threads, load_backend, load_draft_backend, sampling_from, supports_gpu

__all__ = ["LlamaBackend", "default_threads", "load_backend", "load_draft_backend", "sampling_from", "supports_gpu"]
