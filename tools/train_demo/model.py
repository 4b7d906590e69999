"""The network: a llama-architecture transformer that llama.cpp can run unchanged.

RoPE turns neighbouring pairs, which is llama.cpp's layout for this architecture, so weights are
exported as they are. Weights of all layers are stacked in one tensor per kind: the optimiser then
works on a whole stack in one batched product. Knows nothing of text.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .config import ModelConfig

_QUERY_BLOCK = 128  # positions; larger blocks leave the cache, smaller ones waste time in calls


def rope_table(config: ModelConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, each [length, head_dim / 2]."""
    pair = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angle = torch.arange(length, dtype=torch.float64)[:, None] * config.rope_base**-pair
    return angle.cos().float(), angle.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring pairs of x [batch, time, heads, head_dim] by the positions' angles."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of every position to itself and those before it, for [batch, heads, time, head_dim].

    On a CPU, blocks of queries against the keys up to them are twice as fast as PyTorch's fused
    function, whose backward pass is slow for small heads.
    """
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    time = q.shape[2]
    q = q * q.shape[3] ** -0.5
    mask = torch.full((_QUERY_BLOCK, _QUERY_BLOCK), float("-inf"), dtype=q.dtype).triu(1)
    blocks = []
    for start in range(0, time, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, time)
        scores = q[:, :, start:end] @ k[:, :, :end].mT
        scores[..., start:] += mask[: end - start, : end - start]
        blocks.append(scores.softmax(-1) @ v[:, :, :end])
    return torch.cat(blocks, 2)


class DemoModel(nn.Module):
    """Token ids to hidden states; `logits` turns chosen states into scores by the tied table."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.embedding = nn.Parameter(torch.randn(c.vocab_size, c.width) * 0.05)
        self.qkv = self._stack(q_rows + 2 * kv_rows, c.width)
        self.attention_out = self._stack(c.width, q_rows, scale=(2 * c.layers) ** -0.5)
        self.gate_up = self._stack(2 * c.feed_forward, c.width)
        self.down = self._stack(c.width, c.feed_forward, scale=(2 * c.layers) ** -0.5)
        self.attention_norm = nn.Parameter(torch.ones(c.layers, c.width))
        self.feed_forward_norm = nn.Parameter(torch.ones(c.layers, c.width))
        self.output_norm = nn.Parameter(torch.ones(c.width))
        cos, sin = rope_table(c, c.context)
        self.cos: torch.Tensor
        self.sin: torch.Tensor
        self.register_buffer("cos", cos[:, None], persistent=False)
        self.register_buffer("sin", sin[:, None], persistent=False)

    def _stack(self, rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
        std = 0.6 * scale * columns**-0.5
        return nn.Parameter(torch.randn(self.config.layers, rows, columns) * std)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.width,), weight, self.config.norm_eps)

    def forward(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Hidden states [batch, time, width] for ids [batch, time], computed in `dtype`."""
        c = self.config
        batch, time = ids.shape
        cos, sin = self.cos[:time].to(dtype), self.sin[:time].to(dtype)
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        x = F.embedding(ids, self.embedding.to(dtype))
        stacks: tuple[torch.Tensor, ...] = (self.qkv, self.attention_out, self.gate_up, self.down)
        stacks += (self.attention_norm, self.feed_forward_norm)
        for qkv, out, gate_up, down, norm_1, norm_2 in zip(*(s.to(dtype).unbind(0) for s in stacks)):
            q, k, v = F.linear(self._norm(x, norm_1), qkv).split((q_rows, kv_rows, kv_rows), -1)
            q = rotate(q.unflatten(-1, (c.heads, -1)), cos, sin).transpose(1, 2)
            k = rotate(k.unflatten(-1, (c.kv_heads, -1)), cos, sin).transpose(1, 2)
            v = v.unflatten(-1, (c.kv_heads, -1)).transpose(1, 2)
            groups = c.heads // c.kv_heads
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            attended = causal_attention(q, k, v)
            x = x + F.linear(attended.transpose(1, 2).reshape(batch, time, q_rows), out)
            gate, up = F.linear(self._norm(x, norm_2), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return self._norm(x, self.output_norm.to(dtype))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores [.., vocabulary] of hidden states [.., width]."""
        return F.linear(hidden, self.embedding.to(hidden.dtype))
