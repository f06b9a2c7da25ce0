"""Flite's statistical voices through its C library: waveform, pitch track and phones of one sentence.

Debian's libflite1 carries the voices. The pitch (5 ms a value, 0 = unvoiced) and the phone ends come from the
engine's own utterance, so nothing has to be estimated from the sound.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .voices import ENGINES

Floats = NDArray[np.float32]

PITCH_STEP_S = 0.005


class _Wave(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("rate", ctypes.c_int),
        ("count", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    ]


class _Track(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("frames", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("times", ctypes.POINTER(ctypes.c_float)),
        ("rows", ctypes.POINTER(ctypes.POINTER(ctypes.c_float))),
    ]


class _Utterance(ctypes.Structure):
    _fields_ = [("features", ctypes.c_void_p)]


class _Voice(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("features", ctypes.c_void_p)]


@dataclass
class Speech:
    """What an engine made of one sentence."""

    samples: Floats
    """[n], -1..1"""
    rate: int
    """samples a second"""
    pitch: Floats
    """[frames] Hz every PITCH_STEP_S, 0 where unvoiced"""
    phones: list[tuple[str, float]]
    """phone name and its end in seconds"""


class Flite:
    """One process's copy of the engine; not for several threads."""

    def __init__(self) -> None:
        try:
            lib = self._load("libflite.so.1")
        except OSError as error:
            raise RuntimeError("libflite.so.1 is missing: install the Debian package libflite1.") from error
        for name in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            self._load(name)
        pointer, text, real = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float
        for name, result, arguments in (
            ("flite_synth_text", ctypes.POINTER(_Utterance), [text, ctypes.POINTER(_Voice)]),
            ("utt_wave", ctypes.POINTER(_Wave), [ctypes.POINTER(_Utterance)]),
            ("utt_relation", pointer, [ctypes.POINTER(_Utterance), text]),
            ("relation_head", pointer, [pointer]),
            ("item_next", pointer, [pointer]),
            ("item_feat_string", text, [pointer, text]),
            ("item_feat_float", real, [pointer, text]),
            ("feat_val", pointer, [pointer, text]),
            ("val_track", ctypes.POINTER(_Track), [pointer]),
            ("delete_utterance", None, [ctypes.POINTER(_Utterance)]),
            ("flite_feat_set_float", None, [pointer, text, real]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        lib.flite_init()
        self._lib = lib
        self._voices: dict[str, Any] = {}
        for name in ENGINES:
            register = getattr(self._load(f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}")
            register.restype, register.argtypes = ctypes.POINTER(_Voice), [text]
            self._voices[name] = register(None)

    @staticmethod
    def _load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)

    def speak(self, engine: str, text: str, stretch: float = 1.0, pitch: float = 1.0) -> Speech:
        """Say text with one of ENGINES; stretch > 1 is slower, pitch multiplies the fundamental."""
        lib, voice = self._lib, self._voices[engine]
        lib.flite_feat_set_float(voice.contents.features, b"duration_stretch", stretch)
        lib.flite_feat_set_float(voice.contents.features, b"f0_shift", pitch)
        utterance = lib.flite_synth_text(text.encode("ascii", "ignore"), voice)
        try:
            wave = lib.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.count,)).astype(np.float32) / 32768
            track = lib.val_track(lib.feat_val(utterance.contents.features, b"param_track")).contents
            pitch = np.array([track.rows[i][0] for i in range(track.frames)], np.float32)
            phones: list[tuple[str, float]] = []
            item = lib.relation_head(lib.utt_relation(utterance, b"Segment"))
            while item:
                phones.append(
                    (lib.item_feat_string(item, b"name").decode(), lib.item_feat_float(item, b"end"))
                )
                item = lib.item_next(item)
            return Speech(samples, wave.rate, pitch, phones)
        finally:
            lib.delete_utterance(utterance)
