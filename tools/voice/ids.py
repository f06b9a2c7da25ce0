"""Ids of the released checkpoints, and the widths of ours."""

from dataclasses import dataclass

CODEC_PAD, CODEC_BOS, CODEC_EOS = 2148, 2149, 2150
THINK, NOTHINK, THINK_BOS, THINK_EOS = 2154, 2155, 2156, 2157
LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
CODEC_VOCABULARY = 3072


@dataclass(frozen=True)
class TalkerSize:
    """Widths of talker and code predictor; the defaults are those that ship."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    inner: int = 512
    text_vocabulary: int = 1024
    text_hidden: int = 128
    predictor_hidden: int = 192
    predictor_layers: int = 2
    predictor_heads: int = 3
    predictor_inner: int = 512
    predictor_vocabulary: int = 256
    groups: int = 16
    theta: float = 1e6
