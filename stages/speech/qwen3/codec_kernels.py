"""CUDA kernels for the codec decoder's step: few launches, no cuBLAS, exact fp32.

As MLX operations a step is about 300 kernels, and what they cost is mostly the host that queues them. Two kernels
do nearly all of the work: `codec_rows` where few rows make the weights' way through memory the limit, `codec_tiles`
where many make arithmetic the limit. Each is a causal convolution, a transposed one (a product over the last
kernel / stride rows) or a plain product; it reads the past beside the new rows, writes the next past, and finishes
its sums with what comes next: bias, residual, activation, and the next layer's Snake, which is so computed once for
each number.

Which of the two computes a layer does not depend on the number of frames, and neither does the order of a sum: any
split of a sequence into steps gives the same bits. Rows are [T, C], float32.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from .codec_layers import Conv, ConvNeXt, Snake, Upsample

PAST = 54
"""Most rows of the past that `codec_tiles` has room for: a kernel of 7 with dilation 9."""
CHANNELS = 4096
"""Most that `codec_mix` has room for."""
TILES = ((8, 8), (8, 4), (4, 4), (2, 4))
"""Sizes of a lane's part of a tile, rows and columns; a block has 8 and 4 times as many."""
_BUSY = 120
"""Blocks that keep a large GPU busy: an H200 has 132 processors."""
_THREADS = 256
_LAST_EACH = 4
_FOLDER = Path(__file__).parent / "cuda"
_FINISH = """
const Finish finish{
    bias, other_shape[1] == N ? other : nullptr, snake_shape[0] == 2 ? snake : nullptr, N, snake_shape[1],
    how[0] == 1, y, snaked};
const Window in{tail, x, taps > 1 ? tail_shape[0] : 0, x_shape[1]};
const int dilation = taps > 1 ? in.past / (taps - 1) : 0;
"""
_ROWS = f"""
const int K = w_shape[1], N = 16 * w_shape[0], taps = K / x_shape[1];
{_FINISH}
codec_rows<TN, NORMED, GATED>(in, w, finish, kept, x_shape[0], K, dilation);
"""
_TILES = f"""
const int taps = w_shape[0], N = w_shape[2];
{_FINISH}
codec_tiles<TM, TN, MOST>(in, w, finish, kept, x_shape[0], taps, dilation);
"""
_FRAME = """
codec_frame(
    tables, codes, position, frequencies, x, turn, next, codes_shape[1], codes_shape[2],
    tables_shape[0] / codes_shape[2], tables_shape[1], frequencies_shape[0]);
"""
_ATTEND = """
codec_attend<HEADS, KV_HEADS, D, PAST>(qkv, turn, cache, position[0], qkv_shape[0], heard, kept);
"""
_MIX = """
const Window in{tail, x, tail_shape[0], x_shape[1]};
codec_mix<MOST>(in, w, bias, norm, shift, out, kept, x_shape[0], w_shape[0]);
"""
_LAST = """
const Window in{tail, x, tail_shape[0], x_shape[1]};
codec_last<EACH>(in, w, bias, pcm, kept, x_shape[0], w_shape[0]);
"""


@cache
def _kernel(name: str, file: str, inputs: str, outputs: str, body: str, *defined: str) -> Any:
    """Each is compiled when it first runs, which takes a second or two: so there are few."""
    header = [f"#define {one}\n" for one in defined]
    header += [(_FOLDER / part).read_text() for part in ("common.cuh", "codec.cuh", file)]
    return mx.fast.cuda_kernel(
        name=name,
        input_names=inputs.split(),
        output_names=outputs.split(),
        source=body,
        header="".join(header),
    )


def _run(
    kernel: Any,
    inputs: list[mx.array],
    shapes: list[tuple[int, ...]],
    blocks: int,
    *template: tuple[str, Any],
) -> list[mx.array]:
    return kernel(
        inputs=inputs,
        output_shapes=shapes,
        output_dtypes=[mx.float32] * len(shapes),
        grid=(blocks * _THREADS, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        template=list(template),
    )


class Made(NamedTuple):
    """What a layer gives."""

    rows: mx.array
    """[T, N]; of a transposed convolution [T * stride, N / stride]."""
    snaked: mx.array | None
    """The next layer's Snake of them, if one follows."""
    tail: mx.array
    """The last rows of its input, for the next step, [past, C]; not to be read where it needs none."""

    @property
    def next(self) -> mx.array:
        """What the next layer takes."""
        return self.rows if self.snaked is None else self.snaked


class Layer(NamedTuple):
    """A convolution or product with all that finishes it. Everything is float32."""

    few: bool
    """Which kernel: `codec_rows` or `codec_tiles`."""
    weight: mx.array
    """Of the first [N / 16, K, 16], its K in the kernel's order; of the second [taps, C, N]."""
    bias: mx.array
    """[N]"""
    past: int = 0
    stride: int = 1
    """Of a transposed convolution, whose N is stride * channels."""
    snake: mx.array | None = None
    """[2, channels]: the next layer's alpha and 1 / beta."""
    gelu: bool = False
    eps: float | None = None
    """Of the RMS norm of its input, whose weight is in the layer's."""
    gated: bool = False
    """Columns are pairs of gate and up, which give silu(gate) * up, half as wide."""

    @classmethod
    def of(
        cls, few: bool, matrix: mx.array, bias: mx.array | None = None, *, inputs: int | None = None
    ) -> "Layer":
        """:param matrix: [taps * inputs, N]"""
        total, outputs = matrix.shape
        if few:
            split = matrix.reshape(total // 32, 8, 4, outputs // 16, 16)
            weight = split.transpose(3, 0, 2, 1, 4).reshape(outputs // 16, total, 16)
        else:
            weight = matrix.reshape(-1, inputs or total, outputs)
        return cls(few, mx.contiguous(weight), mx.zeros((outputs,)) if bias is None else mx.contiguous(bias))

    @classmethod
    def of_conv(cls, few: bool, conv: Conv) -> "Layer":
        return cls.of(few, conv.matrix, conv.bias, inputs=conv.inputs)._replace(past=conv.past)

    @classmethod
    def of_upsample(cls, few: bool, up: Upsample) -> "Layer":
        inputs = up.weight.shape[0] // up.taps
        return cls.of(few, up.weight, up.bias, inputs=inputs)._replace(past=up.taps - 1, stride=up.stride)

    def before(self, snake: Snake | None) -> "Layer":
        """The layer that gives Snake's result as well."""
        return self if snake is None else self._replace(snake=mx.stack([snake.alpha, snake.inverse_beta]))

    def __call__(self, x: mx.array, tail: mx.array | None = None, other: mx.array | None = None) -> Made:
        """Rows x [T, C]; the `past` rows before them where the layer has such; what is added to its result."""
        name, outputs, blocks, template = self._grid(x.shape[0])
        inputs, given = "tail x w bias other snake how", "y snaked kept"
        if self.few:
            kernel = _kernel(name, f"{name}.cuh", inputs, given, _ROWS, f"EPS {self.eps or 0.0!r}f")
        else:
            kernel = _kernel(name, f"{name}.cuh", inputs, given, _TILES)
        none, how = _nothing(), _constant(int(self.gelu))
        shape = (x.shape[0] * self.stride, outputs // (2 if self.gated else self.stride))
        snake, other = (none if each is None else each for each in (self.snake, other))
        rows, snaked, kept = _run(
            kernel,
            [x if tail is None else tail, x, self.weight, self.bias, other, snake, how],
            [shape, (1,) if snake is none else shape, (1,) if tail is None else tail.shape],
            blocks,
            *template,
        )
        return Made(rows, None if snake is none else snaked, kept)

    def _grid(self, steps: int) -> tuple[str, int, int, list[tuple[str, Any]]]:
        """The kernel's name, N, blocks and template, for so many rows."""
        if self.few:
            outputs = 16 * self.weight.shape[0]
            tiles = -(-steps // next((high for high in (1, 2, 4) if high >= steps), 8))
            normed = self.eps is not None
            wide = 4 if normed or tiles * outputs // 16 >= _BUSY else 2
            template = [("TN", wide), ("NORMED", normed), ("GATED", self.gated)]
            return "codec_rows", outputs, tiles * outputs // (4 * wide), template
        outputs = self.weight.shape[2]
        counts = [-(-steps // (8 * high)) * -(-outputs // (4 * wide)) for high, wide in TILES]
        size = next((i for i, count in enumerate(counts) if count >= _BUSY), len(TILES) - 1)
        template = [("TM", TILES[size][0]), ("TN", TILES[size][1]), ("MOST", PAST)]
        return "codec_tiles", outputs, counts[size], template


class Mix(NamedTuple):
    """The depthwise convolution and the layer norm at the head of a ConvNeXt block."""

    depthwise: mx.array
    """[7, C]"""
    bias: mx.array
    norm: mx.array
    shift: mx.array

    @classmethod
    def of(cls, block: ConvNeXt) -> "Mix":
        return cls(block.depthwise, block.depthwise_bias, block.norm, block.norm_bias)

    @property
    def past(self) -> int:
        return self.depthwise.shape[0] - 1

    def __call__(self, x: mx.array, tail: mx.array | None) -> Made:
        """x [T, C] and the rows before it, [6, C] → rows [T, C]"""
        assert tail is not None
        kernel = _kernel("codec_mix", "codec_ends.cuh", "tail x w bias norm shift", "out kept", _MIX)
        out, kept = _run(kernel, [tail, x, *self], [x.shape, tail.shape], x.shape[0], ("MOST", CHANNELS))
        return Made(out, None, kept)


class Last(NamedTuple):
    """The convolution to one channel, clipped to ±1."""

    weight: mx.array
    """[7, C]"""
    bias: mx.array

    @classmethod
    def of(cls, conv: Conv) -> "Last":
        return cls(mx.contiguous(conv.matrix.reshape(conv.kernel, conv.inputs)), conv.bias)

    @property
    def past(self) -> int:
        return self.weight.shape[0] - 1

    def __call__(self, x: mx.array, tail: mx.array | None) -> Made:
        """x [T, C] and the rows before it, [6, C] → pcm [1, T]"""
        assert tail is not None
        kernel = _kernel("codec_last", "codec_ends.cuh", "tail x w bias", "pcm kept", _LAST)
        shapes = [(1, x.shape[0]), tail.shape]
        blocks = -(-x.shape[0] // (8 * _LAST_EACH))
        pcm, kept = _run(kernel, [tail, x, *self], shapes, blocks, ("EACH", _LAST_EACH))
        return Made(pcm, None, kept)


class Frames(NamedTuple):
    """The embedding of codes."""

    tables: mx.array
    """[groups * codebook_size, C]"""
    frequencies: mx.array
    """[D / 2]: radians by which the transformer's rotation grows with each frame."""

    def __call__(self, codes: mx.array, position: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """codes int32 [1, n, 16], position int32 [1] → (rows [n, C], cos and sin [n, 2, D / 2], next position)."""
        kernel = _kernel(
            "codec_frame", "codec_frames.cuh", "tables codes position frequencies", "x turn next", _FRAME
        )
        steps, half = codes.shape[1], self.frequencies.shape[0]
        x, turn, after = kernel(
            inputs=[self.tables, codes, position, self.frequencies],
            output_shapes=[(steps, self.tables.shape[1]), (steps, 2, half), (1,)],
            output_dtypes=[mx.float32, mx.float32, mx.int32],
            grid=(steps * _THREADS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
        )
        return x, turn, after


def attend(
    qkv: mx.array, turn: mx.array, cache: mx.array, position: mx.array, heads: int
) -> tuple[mx.array, mx.array]:
    """Attention of each row to itself and the window before it.

    Rows qkv [n, (heads + 2 kv_heads) * D], turn as of `Frames`, cache [2, kv_heads, window - 1, D] of the steps
    before, position int32 [1] of the first row → (rows [n, heads * D], next cache)
    """
    kernel = _kernel("codec_attend", "codec_frames.cuh", "qkv turn cache position", "heard kept", _ATTEND)
    _, kv_heads, past, dim = cache.shape
    sizes = [("HEADS", heads), ("KV_HEADS", kv_heads), ("D", dim), ("PAST", past)]
    shapes = [(qkv.shape[0], heads * dim), cache.shape]
    heard, kept = _run(kernel, [qkv, turn, cache, position], shapes, qkv.shape[0] * heads, *sizes)
    return heard, kept


@cache
def _constant(value: int) -> mx.array:
    made = mx.array([value], mx.int32)
    mx.eval(made)
    return made


@cache
def _nothing() -> mx.array:
    made = mx.zeros((1, 1))
    mx.eval(made)
    return made
