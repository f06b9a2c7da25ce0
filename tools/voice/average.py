"""A running average of a model's weights: smoother than the last step's, and what ships."""

import copy

import torch
from torch import nn


class Average:
    """Follows a model; update() uses no host value, so it can be part of a CUDA graph."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.pairs = list(self.model.parameters()), list(model.parameters())
        self.share = 1 - keep

    @torch.no_grad()
    def update(self) -> None:
        """Move a share of the way to the model's weights."""
        torch._foreach_lerp_(*self.pairs, self.share)  # pyright: ignore[reportPrivateUsage]
