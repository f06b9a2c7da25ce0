"""A training step recorded once as a CUDA graph and replayed: small models are held up by launching kernels.

Nothing in the step may depend on a value that only the host would know, and every shape of input is recorded apart.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class Recorder:
    """Calls run on device tensors; with enabled, by replaying what it did before on the same shapes."""

    def __init__(
        self, run: Callable[..., Tensors], optimizers: list[torch.optim.Optimizer], enabled: bool
    ) -> None:
        self.run, self.optimizers, self.enabled = run, optimizers, enabled
        self.recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}
        self.pool = torch.cuda.graph_pool_handle() if enabled else None

    def __call__(self, *inputs: Tensor) -> Tensors:
        """What run returns; valid until the next call."""
        if not self.enabled:
            return self.run(*inputs)
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self.recorded:
            self._record(shapes, inputs)
        graph, held, out = self.recorded[shapes]
        for place, tensor in zip(held, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return out

    def _record(self, shapes: tuple[torch.Size, ...], inputs: Tensors) -> None:
        held = tuple(tensor.clone() for tensor in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles, plans and optimizer states must exist before; these are true steps.
            for _ in range(3):
                self.run(*held)
        torch.cuda.current_stream().wait_stream(side)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # The loader's thread that pins memory may call CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            out = self.run(*held)
        self.recorded[shapes] = graph, held, out
        print(f"recorded {tuple(shapes[0])}", flush=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate where a recorded step reads it."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)
