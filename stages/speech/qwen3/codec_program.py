"""The codec decoder's step as a list of phases for its CUDA kernel: where a layer's weights and rows are.

Two kinds do nearly all of the work: `FEW` rows make the weights' way through memory the limit, `MANY` rows make
arithmetic the limit. Each is a causal convolution, a transposed one (a product over the last kernel / stride rows)
or a plain product; it reads the past beside the new rows, writes the next past, and finishes its sums with what
comes next: bias, residual, activation, and the next layer's Snake, which is so computed once for each number.

Which of the two a layer is does not depend on the number of frames, and neither does the order of a sum: any split
of a sequence into steps gives the same bits. Rows are [T, C], float32.
"""

from typing import NamedTuple

import mlx.core as mx

from . import launch
from .codec_layers import Snake

MOST_PAST = 54
"""Most rows of the past that a layer of many rows has room for: a kernel of 7 with dilation 9."""
CHANNELS = 8192
"""Most that a layer norm has room for."""
TILES = ((8, 8), (8, 4), (4, 4), (2, 4))
"""Sizes of a lane's part of a tile, rows and columns; a block has 8 and 4 times as many. As in codec_step.cuh."""
FEW, MANY, ATTEND, MIX, TO_PCM = range(5)
"""Kinds of phases, as in codec.cuh."""
STRAIGHT, GELU, NORMED, GATED = range(4)
"""What a layer of few rows does beside its product: a GELU of the result; the RMS norm of the input, whose weight
is in the layer's; that, and columns that are pairs of gate and up give silu(gate) * up."""
NONE = -1
LAST_EACH = 4
"""Samples that a lane makes at the end."""


class Phase(NamedTuple):
    """What a block is told of a layer: see codec.cuh."""

    kind: int
    size: int
    blocks: int
    rows: int
    inputs: int
    outputs: int
    products: int
    """Of each sum; `MIX`: taps."""
    past: int = 0
    dilation: int = 0
    old: int = NONE
    """Which tail or cache; caches come behind the tails."""
    weight: int = NONE
    bias: int = NONE
    snake: int = NONE
    width: int = 0
    bent: int = STRAIGHT
    x: int = NONE
    other: int = NONE
    y: int = NONE
    snaked: int = NONE
    unused: int = 0
    """Makes it a multiple of 16 bytes."""


class Layer(NamedTuple):
    """A convolution or product with all that finishes it; where its parameters are."""

    kind: int
    inputs: int
    outputs: int
    """Of a transposed convolution, stride * channels."""
    taps: int
    past: int
    stride: int
    bent: int
    weight: int
    bias: int
    snake: int
    """Of the next layer, which takes its result; [2, channels]: alpha and 1 / beta."""


class Parameters:
    """All numbers that the kernel reads, in one array: layers are added, then `joined`."""

    def __init__(self) -> None:
        self._parts = list[mx.array]()
        self._size = 0

    def add(self, part: mx.array) -> int:
        """Where it is. Each begins with a line of 128 bytes."""
        flat, at = part.astype(mx.float32).flatten(), self._size
        missing = -flat.size % 32
        self._parts += [flat, mx.zeros((missing,))] if missing else [flat]
        self._size += flat.size + missing
        return at

    def joined(self) -> mx.array:
        return mx.concatenate(self._parts)

    def layer(
        self,
        kind: int,
        matrix: mx.array,
        bias: mx.array | None = None,
        *,
        inputs: int | None = None,
        past: int = 0,
        stride: int = 1,
        bent: int = STRAIGHT,
        snake: Snake | None = None,
    ) -> Layer:
        """:param matrix: [taps * inputs, outputs]"""
        total, outputs = matrix.shape
        inputs = inputs or total
        if kind == FEW:  # See codec_rows.cuh.
            matrix = matrix.reshape(total // 32, 8, 4, outputs // 16, 16).transpose(3, 0, 2, 1, 4)
        return Layer(
            *(kind, inputs, outputs, total // inputs, past, stride, bent),
            self.add(matrix),
            NONE if bias is None else self.add(bias),
            NONE if snake is None else self.add(mx.stack([snake.alpha, snake.inverse_beta])),
        )


class Rows(NamedTuple):
    """Where a layer's rows are in the room."""

    at: int
    steps: int
    channels: int
    snaked: int = NONE
    """The next layer's Snake of them."""


class Program:
    """The phases of a step, and the places of the rows that they pass on. A place is used again six rows later."""

    places = 6

    def __init__(self, frames: int, channels: int, tails: int, most: int = 0) -> None:
        """:param channels: of the codes' vectors.
        :param tails: behind them come the caches.
        :param most: numbers of the largest rows, as an earlier program has found it.
        """
        self.phases = list[Phase]()
        self.most = 0
        self._place, self._taken = most, 0
        self._tail, self._cache = 0, tails
        self.start = Rows(self.place(frames * channels), frames, channels)
        self.room = self.places * most

    def place(self, size: int) -> int:
        self.most = max(self.most, size)
        self._taken += 1
        return (self._taken - 1) % self.places * self._place

    def tail(self) -> int:
        self._tail += 1
        return self._tail - 1

    def layer(self, layer: Layer, x: Rows, other: Rows | None = None, *, plain: bool = True) -> Rows:
        """:param plain: whether somebody reads the rows themselves, not only their Snake."""
        steps, channels = x.steps * layer.stride, layer.outputs // layer.stride
        size = steps * channels
        made = Rows(
            self.place(size) if plain or layer.snake < 0 else NONE,
            steps,
            channels // (2 if layer.bent == GATED else 1),
            self.place(size) if layer.snake >= 0 else NONE,
        )
        form, blocks = (_few if layer.kind == FEW else _many)(x.steps, layer.outputs)
        self.phases.append(
            Phase(
                *(layer.kind, form, blocks, x.steps, layer.inputs, layer.outputs, layer.taps * layer.inputs),
                *(layer.past, layer.past // max(layer.taps - 1, 1), self.tail() if layer.past else NONE),
                *(layer.weight, layer.bias, layer.snake, channels, layer.bent),
                *(
                    x.at if x.snaked < 0 else x.snaked,
                    NONE if other is None else other.at,
                    made.at,
                    made.snaked,
                ),
            )
        )
        return made

    def mix(self, taps: int, weight: int, x: Rows) -> Rows:
        """A depthwise convolution and a layer norm.

        :param weight: of [taps + 3, C]: the taps', bias, the norm's weight and bias.
        """
        made = Rows(self.place(x.steps * x.channels), x.steps, x.channels)
        sizes = MIX, 0, x.steps, x.steps, x.channels, x.channels, taps, taps - 1, 1, self.tail(), weight
        self.phases.append(Phase(*sizes, x=x.at, y=made.at))
        return made

    def attend(self, qkv: Rows, heads: int, dim: int) -> Rows:
        """Attention of each row to itself and the window before it, of which there is the next cache."""
        made = Rows(self.place(qkv.steps * heads * dim), qkv.steps, heads * dim)
        self._cache += 1
        sizes = ATTEND, 0, qkv.steps * heads, qkv.steps, qkv.channels, heads * dim, dim
        self.phases.append(Phase(*sizes, old=self._cache - 1, x=qkv.at, y=made.at))
        return made

    def to_pcm(self, taps: int, weight: int, x: Rows) -> None:
        """The convolution to one channel, within ±1: weight [taps, C] and bias."""
        sizes = TO_PCM, 0, -(-x.steps // (8 * LAST_EACH)), x.steps, x.channels, 1, taps * x.channels
        self.phases.append(
            Phase(*sizes, taps - 1, 1, self.tail(), weight, x=x.at if x.snaked < 0 else x.snaked)
        )


def _few(rows: int, outputs: int) -> tuple[int, int]:
    """Columns of a lane and blocks of a layer of few rows."""
    tiles = -(-rows // next((high for high in (1, 2, 4) if high >= rows), 8))
    blocks = {wide: tiles * outputs // (4 * wide) for wide in (4, 2)}
    wide = min(blocks, key=lambda wide: -(-blocks[wide] // launch.blocks()) * wide)
    return wide, blocks[wide]


def _many(rows: int, outputs: int) -> tuple[int, int]:
    """Which of `TILES`, and blocks, of a layer of many rows.

    For a tap of four channels a lane has so many products, loads, and instructions for all else, about: see
    `TAPS` in codec_tiles.cuh.
    """
    blocks = [-(-rows // (8 * high)) * -(-outputs // (4 * wide)) for high, wide in TILES]
    cost = [
        -(-count // launch.blocks()) * (4 * high * wide + high + wide + (16 if high * wide <= 16 else 28))
        for count, (high, wide) in zip(blocks, TILES, strict=True)
    ]
    size = cost.index(min(cost))
    return size, blocks[size]
