"""Talker and code predictor in PyTorch, with the structure and the parameter names of the released models.

The three position axes of the talker are equal for speech, so its interleaved rotary positions are plain ones.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .decoder import RmsNorm, rotary, rotate
from .features import PHONES
from .ids import CODEC_VOCABULARY, TalkerSize
from .quantizer import FIRST
from .voices import TRAITS

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [batch, heads, time, head]"""


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.q_proj = nn.Linear(hidden, heads * head, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, kv_heads * head, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(heads * head, hidden, bias=False)
        self.q_norm, self.k_norm = RmsNorm(head, 1e-6), RmsNorm(head, 1e-6)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (p(x).unflatten(-1, (-1, self.head)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)
        v = v.transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        share = q.shape[1] // k.shape[1]
        wide = (k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)) if share > 1 else (k, v)
        causal = mask is None and past is None
        y = functional.scaled_dot_product_attention(q, *wide, attn_mask=mask, is_causal=causal)
        return self.o_proj(y.transpose(1, 2).flatten(2)), (k, v)


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head: int, inner: int) -> None:
        super().__init__()
        self.self_attn = Attention(hidden, heads, kv_heads, head)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, inner, bias=False),
                "up_proj": nn.Linear(hidden, inner, bias=False),
                "down_proj": nn.Linear(inner, hidden, bias=False),
            }
        )
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(hidden, 1e-6), RmsNorm(hidden, 1e-6)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, kept = self.self_attn(self.input_layernorm(x), cos, sin, past, mask)
        x = x + y
        y = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](
            functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        ), kept


class Stack(nn.Module):
    """Layers and the final norm."""

    def __init__(self, layers: list[Layer], hidden: int, head: int, theta: float) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), RmsNorm(hidden, 1e-6)
        self.head, self.theta = head, theta

    def forward(self, x: Tensor, cache: Cache | None = None, mask: Tensor | None = None) -> Tensor:
        """[batch, time, hidden] to the same; a cache is read and brought up to date in place."""
        start = cache[0][0].shape[2] if cache else 0
        cos, sin = rotary(x.shape[1], self.head, self.theta, start, x.device)
        for i, layer in enumerate(self.layers):
            x, kept = layer(x, cos, sin, cache[i] if cache and start else None, mask)
            if cache is not None:
                cache[i : i + 1] = [kept]
        return self.norm(x)


class Predictor(nn.Module):
    """Groups 1 to 15 of a frame, one after the other, from the talker's hidden state and group 0."""

    def __init__(self, size: TalkerSize) -> None:
        super().__init__()
        hidden, heads, vocabulary = size.predictor_hidden, size.predictor_heads, size.predictor_vocabulary
        layers = [
            Layer(hidden, heads, heads, size.head, size.predictor_inner) for _ in range(size.predictor_layers)
        ]
        self.model = Stack(layers, hidden, size.head, size.theta)
        self.model.codec_embedding = nn.ModuleList(
            [nn.Embedding(vocabulary, size.hidden) for _ in range(size.groups - 1)]
        )
        self.lm_head = nn.ModuleList(
            [nn.Linear(hidden, vocabulary, bias=False) for _ in range(size.groups - 1)]
        )
        self.small_to_mtp_projection = nn.Linear(size.hidden, hidden)


class Talker(nn.Module):
    """Text and codes so far -> group 0 of the next frame; the predictor adds the other groups."""

    def __init__(self, size: TalkerSize) -> None:
        super().__init__()
        self.size = size
        layers = [
            Layer(size.hidden, size.heads, size.kv_heads, size.head, size.inner) for _ in range(size.layers)
        ]
        self.model = Stack(layers, size.hidden, size.head, size.theta)
        self.model.codec_embedding = nn.Embedding(CODEC_VOCABULARY, size.hidden)
        self.model.text_embedding = nn.Embedding(size.text_vocabulary, size.text_hidden)
        self.text_projection = nn.ModuleDict(
            {
                "linear_fc1": nn.Linear(size.text_hidden, size.text_hidden),
                "linear_fc2": nn.Linear(size.text_hidden, size.hidden),
            }
        )
        self.codec_head = nn.Linear(size.hidden, CODEC_VOCABULARY, bias=False)
        self.code_predictor = Predictor(size)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                narrow = 0.5 if "o_proj" in name or "down_proj" in name else 0.8
                std = 0.02 if "head" in name else narrow / math.sqrt(weight.shape[1])
                std = 0.5 if "text_embedding" in name else 0.07 if "codec_embedding" in name else std
                nn.init.normal_(weight, std=std)

    def text(self, tokens: Tensor) -> Tensor:
        """[...] token ids -> [..., hidden]"""
        x = self.model.text_embedding(tokens)  # pyright: ignore[reportCallIssue]
        return self.text_projection["linear_fc2"](functional.silu(self.text_projection["linear_fc1"](x)))

    def code(self, group: int, codes: Tensor) -> Tensor:
        """The talker's embedding of one group's codes."""
        table = (
            self.model.codec_embedding if group == 0 else self.code_predictor.model.codec_embedding[group - 1]
        )  # pyright: ignore
        return table(codes)  # pyright: ignore[reportCallIssue]

    def frames(self, codes: Tensor) -> Tensor:
        """[..., groups] codes -> [..., hidden], summed over the groups."""
        return torch.stack([self.code(group, codes[..., group]) for group in range(codes.shape[-1])]).sum(0)

    def input_table(self, used: int) -> Tensor:
        """[rows, hidden] all input vectors: text tokens, codec tokens, codes of groups 1 to used - 1, zeros."""
        predictor = self.code_predictor.model
        text = self.text(torch.arange(self.size.text_vocabulary, device=self.codec_head.weight.device))
        later = [table.weight for table in predictor.codec_embedding[: used - 1]]  # pyright: ignore
        rows = [text, self.model.codec_embedding.weight, *later]  # pyright: ignore[reportAttributeAccessIssue]
        total = sum(len(row) for row in rows)
        return torch.cat([*rows, text.new_zeros(8 - total % 8, self.size.hidden)])

    def later_groups(self, hidden: Tensor, codes: Tensor, used: int) -> Tensor:
        """Logits [n, used - 1, vocabulary] of groups 1.. given hidden [n, hidden] and the true codes [n, used].

        The lookups are products with one-hot rows: on a GPU the gradient of an embedding costs far more.
        """
        predictor = self.code_predictor
        first = self.model.codec_embedding.weight[:FIRST]  # pyright: ignore[reportIndexIssue]
        kind = hidden.dtype
        seen = [hidden, (codes[:, :1] == torch.arange(FIRST, device=codes.device)).to(kind) @ first.to(kind)]
        if used > 2:
            tables = torch.stack([t.weight for t in predictor.model.codec_embedding[: used - 2]])  # pyright: ignore
            hot = codes.T[1 : used - 1, :, None] == torch.arange(tables.shape[1], device=codes.device)
            seen += (hot.to(kind) @ tables.to(kind)).unbind()
        x = predictor.model(predictor.small_to_mtp_projection(torch.stack(seen, 1)))[:, 1:]
        heads = torch.stack([head.weight for head in predictor.lm_head[: used - 1]])  # pyright: ignore
        return (x.transpose(0, 1) @ heads.to(x.dtype).transpose(1, 2)).transpose(0, 1)


class PhoneGuide(nn.Module):
    """Names the phones of the coming frame from the talker's hidden state: a hint while training, never shipped."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, 2 * len(PHONES))

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, 2, phones]"""
        return self.head(hidden).unflatten(-1, (2, -1))


class VoiceRow(nn.Module):
    """The row of a voice that is not a preset, linear in its traits: what a speaker encoder is to give (x-vector).

    While training the traits are blurred, as what an encoder hears will be.
    """

    BLUR = (0.02, 0.08, 0.04, 0.2)
    """deviations of an engine's four traits; the pace is the hardest to hear"""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, TRAITS) * 0.07)
        blur = torch.tensor(self.BLUR).repeat(TRAITS // len(self.BLUR))
        self.register_buffer("blur", blur, persistent=False)

    def forward(self, traits: Tensor) -> Tensor:
        """[n, TRAITS] -> [n, hidden]"""
        if self.training:
            traits = traits + torch.randn_like(traits) * self.blur
        return traits @ self.weight.T
