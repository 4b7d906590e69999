"""How model families write thinking and tool calls: one module per family.

`detect` chooses one from the text of a chat template, `FORMATS` by name.
"""

from __future__ import annotations

from . import (
    apertus,
    deepseek,
    functionary,
    gemma,
    glm,
    hermes,
    invoke,
    kimi,
    lfm,
    minicpm,
    minimax_m3,
    mistral,
    qwen_coder,
    solar,
)
from .channels import HARMONY, MUSE
from .dialect import Format
from .json_families import JSON_FAMILIES

# In the order of detection: a family whose marks are part of another's comes after it.
_FORMATS: tuple[Format, ...] = (
    mistral.FORMAT,
    MUSE,
    HARMONY,
    functionary.V32,
    kimi.K2,
    kimi.K3,
    minimax_m3.FORMAT,
    invoke.MINIMAX,
    invoke.DSML,
    gemma.FORMAT,
    minicpm.FORMAT,
    qwen_coder.SEED,
    qwen_coder.FORMAT,
    glm.HY,
    glm.FORMAT,
    functionary.V31,
    deepseek.FORMAT,
    solar.FORMAT,
    apertus.FORMAT,
    lfm.FORMAT,
    *JSON_FAMILIES,
    hermes.FORMAT,
)

FORMATS: dict[str, Format] = {format.name: format for format in _FORMATS}


def detect(template: str) -> Format:
    """The format of the first family whose marks are all in the template, else hermes."""
    template = template.replace('\\"', '"')  # as they stand in strings of Jinja
    return next((form for form in _FORMATS if form.fits(template)), hermes.FORMAT).for_template(template)


__all__ = ["FORMATS", "Format", "detect"]
