"""The chat template of the built-in model, and the compilation of templates with Jinja."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2.sandbox

_PATH = Path(__file__).with_name("chat_template.jinja")


def template_source() -> str:
    """The template, as the metadata of the file has it."""
    return _PATH.read_text(encoding="utf-8")


def compile_template(source: str) -> jinja2.Template:
    """Compile the chat template of a model file."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source)
