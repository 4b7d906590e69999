"""The network: a llama-architecture transformer that llama.cpp can run unchanged.

RoPE rotates neighbouring pairs, as llama.cpp does for this architecture, so weights are exported unchanged. The weights
of all layers are stacked in one tensor per kind, so that the optimiser updates a whole stack in one batched product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .config import ModelConfig

# Positions of a block of attention. Larger blocks do not fit the CPU cache; smaller ones need more calls.
_QUERY_BLOCK = 128


def rope_table(config: ModelConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, each [length, head_dim / 2]."""
    pair = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angle = torch.arange(length, dtype=torch.float64)[:, None] * config.rope_base**-pair
    return angle.cos().float(), angle.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring pairs of x [batch, time, heads, head_dim] by the angles of the positions."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class _CausalAttention(torch.autograd.Function):
    """Attention in blocks of queries. The backward pass adds to the gradients of keys and values in place.

    PyTorch's backward pass would make a full-sized gradient of the keys for each block, and its fused function is slow
    for small heads: this class makes a training step on a CPU a quarter shorter. Heads that share keys are computed
    together.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n, groups, time, dim = q.shape
        mask = torch.full((_QUERY_BLOCK, _QUERY_BLOCK), float("-inf"), dtype=q.dtype).triu(1)
        out, shares = torch.empty_like(q), []
        for start in range(0, time, _QUERY_BLOCK):
            end = min(start + _QUERY_BLOCK, time)
            rows = end - start
            scores = torch.bmm(q[:, :, start:end].reshape(n, -1, dim), k[:, :end].mT)
            scores.view(n, groups, rows, end)[..., start:].add_(mask[:rows, :rows])
            share = scores.softmax(-1)
            out[:, :, start:end] = torch.bmm(share, v[:, :end]).view(n, groups, rows, dim)
            shares.append(share)
        ctx.save_for_backward(q, k, v, *shares)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (grad_out,) = grads
        q, k, v, *shares = ctx.saved_tensors
        n, groups, _, dim = q.shape
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for i, share in enumerate(shares):
            start = i * _QUERY_BLOCK
            end = start + share.shape[1] // groups
            queries = q[:, :, start:end].reshape(n, -1, dim)
            grad = grad_out[:, :, start:end].reshape(n, -1, dim)
            grad_v[:, :end] += torch.bmm(share.mT, grad)
            grad_share = torch.bmm(grad, v[:, :end].mT)
            grad_scores = torch._softmax_backward_data(grad_share, share, -1, share.dtype)
            grad_q[:, :, start:end] = torch.bmm(grad_scores, k[:, :end]).view(n, groups, -1, dim)
            grad_k[:, :end] += torch.bmm(grad_scores.mT, queries)
        return grad_q, grad_k, grad_v


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of every position to itself and those before it.

    Args:
        q: [batch, heads, time, head_dim], already divided by the root of head_dim.
        k, v: [batch, kv_heads, time, head_dim]; neighbouring query heads share one of them.
    """
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
    batch, kv_heads = k.shape[:2]
    grouped = q.unflatten(1, (kv_heads, -1)).flatten(0, 1)
    attended: torch.Tensor = _CausalAttention.apply(grouped, k.flatten(0, 1), v.flatten(0, 1))
    return attended.view(batch, -1, *q.shape[2:])


class DemoModel(nn.Module):
    """Maps token ids to hidden states; `logits` maps hidden states to logits by the tied embedding."""

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

    def fuse(self) -> None:
        """Compile the code around attention, with a C++ compiler: takes a minute, and makes a CPU a quarter faster."""
        self._before_attention = torch.compile(self._before_attention, dynamic=True)
        self._after_attention = torch.compile(self._after_attention, dynamic=True)
        self.losses = torch.compile(self.losses, dynamic=True)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        normed = F.rms_norm(x, (self.config.width,), weight, self.config.norm_eps)
        return normed.to(dtype)

    def _before_attention(
        self, x: torch.Tensor, norm: torch.Tensor, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        c = self.config
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        q, k, v = F.linear(self._norm(x, norm, qkv.dtype), qkv).split((q_rows, kv_rows, kv_rows), -1)
        q = rotate(q.float().unflatten(-1, (c.heads, -1)), cos, sin) * c.head_dim**-0.5
        k = rotate(k.float().unflatten(-1, (c.kv_heads, -1)), cos, sin)
        v = v.unflatten(-1, (c.kv_heads, -1))
        return tuple(part.to(qkv.dtype).transpose(1, 2).contiguous() for part in (q, k, v))

    def _after_attention(
        self,
        x: torch.Tensor,
        attended: torch.Tensor,
        out: torch.Tensor,
        norm: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        x = x + F.linear(attended.transpose(1, 2).flatten(2), out)
        gate, up = F.linear(self._norm(x, norm, gate_up.dtype), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    def forward(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Hidden states [batch, time, width] for ids [batch, time], with matrices in `dtype`."""
        time = ids.shape[1]
        cos, sin = self.cos[:time], self.sin[:time]
        # The residual stream and the norms have 32 bits; matrices are multiplied in `dtype`.
        x = F.embedding(ids, self.embedding)
        matrices = (self.qkv, self.attention_out, self.gate_up, self.down)
        layers = zip(*(stack.to(dtype).unbind(0) for stack in matrices), self.attention_norm, self.feed_forward_norm)
        for qkv, out, gate_up, down, norm_1, norm_2 in layers:
            q, k, v = self._before_attention(x, norm_1, qkv, cos, sin)
            x = self._after_attention(x, causal_attention(q, k, v), out, norm_2, gate_up, down)
        return self._norm(x, self.output_norm, dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [.., vocabulary] of hidden states [.., width]."""
        return F.linear(hidden, self.embedding.to(hidden.dtype))

    def losses(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy in nats of each target [n] after its hidden state [n, width]."""
        return F.cross_entropy(self.logits(hidden).float(), targets, reduction="none")
