"""Response bodies of GET /props, /slots and /metrics (Prometheus)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Slot:
    """The token counts of a running sequence. Its text is not shown."""

    id_task: int
    n_prompt: int
    n_cached: int
    n_computed: int
    n_sampled: int
    max_tokens: int


def props_body(
    name: str,
    version: str,
    *,
    n_ctx: int,
    n_slots: int,
    sampling: Mapping[str, Any],
    template: str,
    template_caps: Mapping[str, bool],
    bos: str,
    eos: str,
) -> dict[str, Any]:
    """The body of GET /props, with llama.cpp's field names. It does not have the path of the model file."""
    return {
        "default_generation_settings": {"params": dict(sampling), "n_ctx": n_ctx},
        "total_slots": n_slots,
        "model_alias": name,
        "modalities": {"vision": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": template,
        "chat_template_caps": dict(template_caps),
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localchat {version}",
    }


def slots_body(slots: Sequence[Slot], n_slots: int, n_ctx: int) -> list[dict[str, Any]]:
    """The body of GET /slots: `n_slots` entries, those of running sequences first."""
    busy: list[Slot | None] = [*slots[:n_slots]]
    idle: list[Slot | None] = [None] * (n_slots - len(busy))
    return [{"id": i, "n_ctx": n_ctx, **_slot(slot)} for i, slot in enumerate([*busy, *idle])]


def _slot(slot: Slot | None) -> dict[str, Any]:
    if slot is None:
        return {"is_processing": False}
    n_left = slot.max_tokens - slot.n_prompt - slot.n_sampled
    return {
        "is_processing": True,
        "id_task": slot.id_task,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_processed": min(slot.n_computed, slot.n_prompt),
        "n_prompt_tokens_cache": slot.n_cached,
        "next_token": [{"has_next_token": n_left > 0, "n_remain": n_left, "n_decoded": slot.n_sampled}],
    }


Labels = Mapping[str, str]


@dataclass(frozen=True)
class Series:
    """One sample of a metric: value, labels, and a suffix of the metric's name."""

    value: int | float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


@dataclass(frozen=True)
class Metric:
    """A counter, gauge or histogram with its help text."""

    name: str
    kind: str
    help: str
    series: tuple[Series, ...]


def counter(name: str, help: str, *series: Series) -> Metric:
    return Metric(name, "counter", help, series)


def gauge(name: str, help: str, value: int | float) -> Metric:
    return Metric(name, "gauge", help, (Series(value),))


def histogram(name: str, help: str, *, bounds: Sequence[float], counts: Sequence[int], n: int, total: float) -> Metric:
    """A histogram whose `counts` are cumulative: the number of values up to each bound."""
    buckets = [
        Series(count, (("le", label),), "_bucket")
        for label, count in zip([*map(_number, bounds), "+Inf"], [*counts, n])
    ]
    return Metric(name, "histogram", help, (*buckets, Series(total, (), "_sum"), Series(n, (), "_count")))


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Format metrics as Prometheus text. Every name gets the prefix localchat_."""
    lines: list[str] = []
    for metric in metrics:
        name = "localchat_" + metric.name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{series.suffix}{_labels(series.labels)} {_number(series.value)}" for series in metric.series]
    return "\n".join([*lines, ""])


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: int | float) -> str:
    return repr(round(value, 6)) if isinstance(value, float) else str(value)
