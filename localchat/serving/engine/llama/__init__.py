"""llama.cpp through llama-cpp-python's low-level API: the only place that imports llama_cpp."""

from .backend import LlamaBackend
from .devices import built_for, supports_gpu
from .load import load_backend, sampling_from
from .threads import default_threads

__all__ = ["LlamaBackend", "built_for", "default_threads", "load_backend", "sampling_from", "supports_gpu"]
