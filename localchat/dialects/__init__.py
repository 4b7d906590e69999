"""Dialects: the markers of reasoning and tool calls of each model family. One module per family declares them once.

`detect` chooses a dialect by the text of a chat template; `DIALECTS` has them by name.
"""

from __future__ import annotations

from . import (
    apertus,
    deepseek,
    functionary,
    gemma,
    glm,
    granite,
    harmony,
    hermes,
    invoke,
    kimi,
    lfm,
    minicpm,
    minimax_m3,
    mistral,
    muse,
    qwen_coder,
    solar,
)
from .dialect import Dialect
from .json_families import JSON_FAMILIES

# In the order of detection: a family whose markers are part of another's comes after it.
_DIALECTS: tuple[Dialect, ...] = (
    mistral.DIALECT,
    muse.DIALECT,
    harmony.DIALECT,
    functionary.V32,
    kimi.K2,
    kimi.K3,
    minimax_m3.DIALECT,
    invoke.MINIMAX,
    invoke.DSML,
    gemma.DIALECT,
    minicpm.DIALECT,
    qwen_coder.SEED,
    qwen_coder.DIALECT,
    glm.HY,
    glm.DIALECT,
    functionary.V31,
    deepseek.DIALECT,
    solar.DIALECT,
    apertus.DIALECT,
    lfm.DIALECT,
    granite.DIALECT,
    *JSON_FAMILIES,
    hermes.DIALECT,
)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in _DIALECTS}


def detect(template: str) -> Dialect:
    """The dialect of the first family whose markers are all in the template, else hermes."""
    template = template.replace('\\"', '"')  # as they stand in strings of Jinja
    return next((dialect for dialect in _DIALECTS if dialect.fits(template)), hermes.DIALECT).for_template(template)


__all__ = ["DIALECTS", "Dialect", "detect"]
