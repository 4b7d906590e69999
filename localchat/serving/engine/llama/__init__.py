"""llama.cpp through llama-cpp-python's low-level API: the only place that imports llama_cpp."""

from .backend import LlamaBackend
from .devices import supports_gpu
from .load import default_threads, load_backend, load_draft_backend, sampling_from

__all__ = ["LlamaBackend", "default_threads", "load_backend", "load_draft_backend", "sampling_from", "supports_gpu"]
