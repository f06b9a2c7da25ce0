"""What a codec decoder is made of: its weights, as layers, in the order in which a step runs them."""

from typing import NamedTuple

import mlx.core as mx

from .codec_layers import Conv, ConvNeXt, Residual, Snake, Upsample
from .config import CodecConfig
from .weights import Linear, Weights, merge


class CodecLayer(NamedTuple):
    """A layer of the transformer."""

    qkv: Linear
    out: Linear
    """Times the attention's layer scale."""
    gate_up: Linear
    down: Linear
    """Times the MLP's layer scale."""
    input_norm: mx.array
    output_norm: mx.array

    @classmethod
    def build(cls, weights: Weights, name: str, config: CodecConfig) -> "CodecLayer":
        width, inner = config.hidden_size, config.intermediate_size
        queries = config.num_attention_heads * config.attention_width
        keys = config.num_key_value_heads * config.attention_width
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        qkv = merge(
            weights.linear(f"{attention}.q_proj", width, queries),
            weights.linear(f"{attention}.k_proj", width, keys),
            weights.linear(f"{attention}.v_proj", width, keys),
        )
        gate_up = merge(
            weights.linear(f"{mlp}.gate_proj", width, inner), weights.linear(f"{mlp}.up_proj", width, inner)
        )
        out, down = (
            weights.linear(f"{attention}.o_proj", queries, width),
            weights.linear(f"{mlp}.down_proj", inner, width),
        )
        out_scale = weights.array(f"{name}.self_attn_layer_scale.scale", width)
        down_scale = weights.array(f"{name}.mlp_layer_scale.scale", width)
        assert isinstance(qkv, Linear)
        assert isinstance(gate_up, Linear)
        return cls(
            qkv,
            Linear(out.matrix * out_scale),
            gate_up,
            Linear(down.matrix * down_scale),
            weights.array(f"{name}.input_layernorm.weight", width),
            weights.array(f"{name}.post_attention_layernorm.weight", width),
        )


class CodecParts(NamedTuple):
    tables: mx.array
    """[groups * codebook_size, codebook_dim]: code vectors, projected."""
    pre_conv: Conv
    into: Linear
    layers: list[CodecLayer]
    norm: mx.array
    out_of: Linear
    convolutions: list[Upsample | ConvNeXt | Conv | Snake | Residual]

    @classmethod
    def build(cls, config: CodecConfig, weights: Weights) -> "CodecParts":
        latent, hidden = config.latent_dim, config.hidden_size
        name = "decoder.pre_transformer"
        return cls(
            _fold_quantiser(config, weights),
            Conv.build(weights, "decoder.pre_conv.conv", config.codebook_dim, latent, 3),
            weights.linear(f"{name}.input_proj", latent, hidden, bias=True),
            [
                CodecLayer.build(weights, f"{name}.layers.{i}", config)
                for i in range(config.num_hidden_layers)
            ],
            weights.array(f"{name}.norm.weight", hidden),
            weights.linear(f"{name}.output_proj", hidden, latent, bias=True),
            _convolutions(config, weights),
        )

    def tails(self) -> list[tuple[int, int]]:
        """Rows and channels of the past of each causal convolution, as they run."""
        shapes = [(self.pre_conv.past, self.pre_conv.inputs)]
        for layer in self.convolutions:
            match layer:
                case Upsample(taps=taps) if taps > 1:
                    shapes.append((taps - 1, layer.weight.shape[0] // taps))
                case ConvNeXt():
                    shapes.append((layer.depthwise.shape[0] - 1, layer.norm.shape[0]))
                case Conv() if layer.past:
                    shapes.append((layer.past, layer.inputs))
                case Residual(wide=wide):
                    shapes.append((wide.past, wide.inputs))
                case _:
                    pass
        return shapes


def _convolutions(
    config: CodecConfig, weights: Weights
) -> list[Upsample | ConvNeXt | Conv | Snake | Residual]:
    made: list[Upsample | ConvNeXt | Conv | Snake | Residual] = []
    latent, width = config.latent_dim, config.decoder_dim
    for i, rate in enumerate(config.upsampling_ratios):
        made += [
            Upsample.build(weights, f"decoder.upsample.{i}.0.conv", latent, latent, rate, rate),
            ConvNeXt.build(weights, f"decoder.upsample.{i}.1", latent),
        ]
    made.append(Conv.build(weights, "decoder.decoder.0.conv", latent, width, 7))
    for i, rate in enumerate(config.upsample_rates):
        block = f"decoder.decoder.{i + 1}.block"
        made += [
            Snake.build(weights, f"{block}.0", width),
            Upsample.build(weights, f"{block}.1.conv", width, width // 2, 2 * rate, rate),
        ]
        width //= 2
        made += [
            Residual.build(weights, f"{block}.{2 + j}", width, dilation)
            for j, dilation in enumerate((1, 3, 9))
        ]
    last = len(config.upsample_rates) + 1
    made += [
        Snake.build(weights, f"decoder.decoder.{last}", width),
        Conv.build(weights, f"decoder.decoder.{last + 1}.conv", width, 1, 7),
    ]
    return made


def _fold_quantiser(config: CodecConfig, weights: Weights) -> mx.array:
    """One table [groups * codebook_size, codebook_dim] of projected code vectors."""
    tables: list[mx.array] = []
    half = config.codebook_dim // 2
    for group in range(config.num_quantizers):
        name = "decoder.quantizer.rvq_first" if group == 0 else "decoder.quantizer.rvq_rest"
        book = f"{name}.vq.layers.{max(group - 1, 0)}._codebook"
        total = weights.array(f"{book}.embedding_sum", config.codebook_size, half, dtype=mx.float32)
        usage = weights.array(f"{book}.cluster_usage", config.codebook_size, dtype=mx.float32)
        project = weights.array(f"{name}.output_proj.weight", config.codebook_dim, half, 1, dtype=mx.float32)
        tables.append((total / mx.maximum(usage, 1e-5)[:, None]) @ project[:, :, 0].T)
    return mx.concatenate(tables, axis=0).astype(weights.dtype)
