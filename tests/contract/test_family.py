"""Every way of the family through the real pipeline: clones, designs, presets, side by side in one process."""

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from vivavoce.bus import layout
from vivavoce.bus.messages import Ending, Speak
from vivavoce.bus.running import Running
from vivavoce.configs.voice_store import VoiceStore
from vivavoce.stages.speech.qwen3.codec_decoder import CodecDecoder
from vivavoce.stages.speech.qwen3.codec_encoder import CodecEncoder
from vivavoce.stages.speech.qwen3.speaker_encoder import SpeakerEncoder
from vivavoce.stages.speech.qwen3.talker import Talker

TEXT = "Hello, world!"
LONG = "The living voice leaves before the second frame is begun. " * 24
WAYS = {
    "preset": {"model": "custom", "voice": "ryan"},
    "instructed": {
        "model": "custom",
        "voice": "ryan",
        "instructions": "Very slowly, with a long sigh between words.",
    },
    "design": {"model": "design", "instructions": "A calm old man with a rough voice."},
    "icl": {"model": "base", "reference": "low", "reference_text": "What the reference says."},
    "icl full": {
        "model": "base",
        "reference": "low",
        "reference_text": "What the reference says.",
        "full_text": True,
    },
    "x-vector": {"model": "base", "reference": "low"},
    "embedding": {"model": "base", "x_vector": np.ones(32, "<f4").tobytes()},
}
_ids = count()


def reference(pitch: float, seconds: float = 2.0) -> bytes:
    """A tone with overtones, 16-bit PCM at 24 kHz."""
    time = np.arange(round(seconds * 24000)) / 24000
    tone = np.sum([np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 12)], axis=0)
    return np.round(6000 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))).astype("<i2").tobytes()


VOICES = {"low": reference(110), "high": reference(290)}


def speak(way: str, text: str = TEXT, **fields: Any) -> Speak:
    given = {**WAYS[way], **fields}
    if isinstance(given.get("reference"), str):
        given["reference"] = VOICES[str(given["reference"])]
    plain = Speak(request=f"family-{next(_ids)}", model="", text=text, seed=3, max_frames=24)
    return msgspec.structs.replace(plain, **given)


async def listen(running: Running, wanted: Speak, delay_s: float = 0) -> tuple[bytes, Ending]:
    await anyio.sleep(delay_s)
    with anyio.fail_after(120):
        async with running.client.speak(wanted) as request:
            parts = [audio.data async for audio in request]
    assert request.ending is not None
    return b"".join(parts), request.ending


@pytest.mark.parametrize("way", WAYS)
async def test_whole_is_the_joined_stream(family: Running, way: str) -> None:
    stream, ending = await listen(family, speak(way))
    assert ending.reason in ("stop", "length"), ending
    assert len(stream) == ending.frames * 3840
    whole, _ = await listen(family, speak(way, format="wav", container_streamed=False))
    assert whole[44:] == stream
    other, _ = await listen(family, speak(way, seed=4))
    assert other != stream


async def test_the_voice_is_heard(family: Running) -> None:
    for way in ("icl", "x-vector"):
        low, _ = await listen(family, speak(way))
        high, _ = await listen(family, speak(way, reference="high"))
        assert low != high
    one, _ = await listen(family, speak("design"))
    other, _ = await listen(family, speak("design", instructions="A young woman, fast and bright."))
    assert one != other


async def test_language_counts_for_clones(family: Running) -> None:
    found = {(await listen(family, speak("icl", language=name)))[0] for name in ("de", "English", "auto")}
    assert len(found) == 3


async def test_eight_clones_at_once_sound_as_each_alone(family: Running) -> None:
    """O08: two references in turn, a preset among them, one of them left in the middle."""
    wanted = [
        speak("icl" if i % 4 < 2 else "x-vector", reference=("low", "high")[i % 2], seed=5 + i // 4)
        for i in range(8)
    ]
    alone = [
        (await listen(family, msgspec.structs.replace(one, request=f"solo-{i}")))[0]
        for i, one in enumerate(wanted)
    ]
    together: dict[int, bytes] = {}

    async def one(index: int) -> None:
        together[index] = (await listen(family, wanted[index], 0.02 * index))[0]

    async def leaver() -> None:
        async with family.client.speak(speak("icl", LONG, reference="high")) as request:
            await anext(request)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leaver)
        tasks.start_soon(listen, family, speak("preset"))
        for index in range(8):
            tasks.start_soon(one, index)
    assert [together[index] for index in range(8)] == alone


@pytest.mark.parametrize("way", ["icl", "design", "instructed"])
async def test_bytes_are_the_same_with_the_caches_cold_warm_and_off(way: str, family: Running) -> None:
    more = {"instructions": "A calm old man. " * 4} if way == "design" else dict[str, Any]()
    wanted = speak(way, TEXT, **more)
    found: list[bytes] = []
    for bound in (family.layout.speech.voice_cache_bytes, 0):
        settings = msgspec.structs.replace(family.layout.speech, voice_cache_bytes=bound)
        async with Running(msgspec.structs.replace(family.layout, speech=settings)) as running:
            found += [
                (await listen(running, msgspec.structs.replace(wanted, request=f"{index}")))[0]
                for index in range(2)
            ]
    assert len(set(found)) == 1


@pytest.mark.parametrize("way", ["icl", "x-vector"])
async def test_a_stored_voice_is_as_fast_and_the_same_after_a_restart(
    way: str, family: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes with its files cold, warm and removed; warm ones take the place of all that it costs."""
    text = "What the reference says. " * 3 if way == "icl" else None  # enough for a prefix of its own
    store = VoiceStore(tmp_path)
    store.add("Ada", VOICES["low"], text=text)
    wanted = speak(way, reference_text=text, stored="Ada")
    settings = msgspec.structs.replace(family.layout.speech, models=family.layout.speech.models[2:3])
    api = msgspec.structs.replace(family.layout.api, voices_folder=str(tmp_path))
    layout = msgspec.structs.replace(family.layout, speech=settings, api=api)
    async with Running(layout) as running:
        cold, _ = await listen(running, wanted)
    kinds = {file.name.partition("-")[0] for file in (tmp_path / "ada.files").iterdir()}
    assert kinds == ({"voice", "codec", "prefix"} if way == "icl" else {"voice"})
    async with Running(layout) as running:
        with monkeypatch.context() as patched:
            for owner, name in (
                (SpeakerEncoder, "embed"),
                (CodecEncoder, "encode"),
                (CodecDecoder, "after"),
                (Talker, "prefix"),
            ):
                patched.delattr(owner, name)
            warm, _ = await listen(running, wanted)
    shutil.rmtree(tmp_path / "ada.files")
    async with Running(layout) as running:
        removed, ending = await listen(running, wanted)
    assert ending.reason in ("stop", "length")
    assert cold == warm == removed


async def test_layouts_of_one_voice_share_nothing(family: Running) -> None:
    """Their rows before the text are as many, but not the same."""
    long = "What the reference says. " * 3  # enough for a pass of its own, and shorter than the sound
    found: list[dict[str, bytes]] = []
    for ways in (("icl", "icl full"), ("icl full", "icl")):
        settings = msgspec.structs.replace(family.layout.speech, models=family.layout.speech.models[2:3])
        async with Running(msgspec.structs.replace(family.layout, speech=settings)) as running:
            found.append({way: (await listen(running, speak(way, reference_text=long)))[0] for way in ways})
    assert found[0] == found[1]


async def test_the_reference_first_layout_speaks_and_remembers_alike(family: Running) -> None:
    settings = msgspec.structs.replace(family.layout.speech, clone_layout="reference_first")
    async with Running(msgspec.structs.replace(family.layout, speech=settings)) as running:
        cold, ending = await listen(running, speak("icl"))
        await listen(running, speak("icl", "Another text in between."))
        warm, _ = await listen(running, speak("icl"))
    assert ending.frames > 0
    assert cold == warm
    assert cold != (await listen(family, speak("icl")))[0]


async def test_a_long_text_is_one_stream_of_parts(family: Running) -> None:
    stream, ending = await listen(family, speak("icl", LONG, max_frames=None, temperature=0.9))
    assert ending.reason in ("stop", "length")
    assert len(stream) >= ending.frames * 3840  # and pauses between the parts
    again, _ = await listen(family, speak("icl", LONG, max_frames=None, temperature=0.9))
    assert again == stream


async def test_marks_change_nothing_unless_they_are_wanted(family: Running) -> None:
    """O02: what is sent with marks sounds as what is meant by them."""
    raw = "## Plan\n**First**, see [the map](https://example.org/a_b?x=1) 😀."
    plain, _ = await listen(family, speak("preset", "Plan.\nFirst, see the map."))
    assert (await listen(family, speak("preset", raw)))[0] == plain
    assert (await listen(family, speak("preset", raw, clean=False)))[0] != plain


async def test_a_transcript_that_cannot_cover_its_clip_is_cut_by_the_texts_budget(family: Running) -> None:
    """The official code goes on for 24 s there. The transcript is not counted as text to be spoken."""
    settings = msgspec.structs.replace(
        family.layout.speech, models=family.layout.speech.models[2:3], frames_floor=4, frames_per_token=2.0
    )
    wanted = speak("icl", "Hi.", reference=reference(110, 6), reference_text="A.", max_frames=None, top_k=1)
    async with Running(msgspec.structs.replace(family.layout, speech=settings)) as running:
        stream, ending = await listen(running, wanted)
    assert (ending.reason, ending.frames) == ("length", 4 + 2 * ending.text_tokens)
    assert ending.text_tokens < 5
    assert len(stream) == ending.frames * 3840


async def test_text_in_pieces_in_a_cloned_voice(family: Running) -> None:
    """The pieces' bounds change nothing, nor do marks; the reference comes before all of the text."""
    found = set[bytes]()
    for pieces in (
        ["Hello, ", "world, here I am. "],
        ["Hello, wor", "ld, here", " I am. "],
        ["*Hello", ", wor", "ld*, [he", "re](x.org) I", " <b>am.", "\n"],
    ):
        with anyio.fail_after(60):
            async with family.client.speak(speak("icl", "", more_text=True)) as request:
                for piece in pieces:
                    await request.text(piece)
                await request.text("", final=True)
                found.add(b"".join([audio.data async for audio in request]))
    assert len(found) == 1
    assert next(iter(found))


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": "base", "voice": "ryan"}, "voice", "custom"),
        ({"model": "base"}, "ref_audio", "reference"),
        ({"model": "base", "reference": "low", "instructions": "Sad."}, "instructions", "design"),
        ({"model": "custom", "voice": "ryan", "reference": "low"}, "ref_audio", "base"),
        ({"model": "custom", "voice": "ryan", "x_vector": b"\0" * 128}, "speaker_embedding", "base"),
        ({"model": "custom", "reference": "low", "stored": "Ada"}, "voice", "'Ada' is a stored voice"),
        ({"model": "custom06", "voice": "ryan", "instructions": "Sad."}, "instructions", "custom"),
        ({"model": "design"}, "instructions", "description"),
        ({"model": "design", "instructions": "Very old. " * 1000}, "instructions", "tokens"),
        ({"model": "design", "voice": "ryan", "instructions": "Old."}, "voice", "custom"),
        ({"model": "base", "x_vector": b"\0" * 64}, "speaker_embedding", "16"),
        ({"model": "base", "reference": "low", "language": "Klingon"}, "language", "german"),
    ],
)
async def test_what_a_model_cannot_do_is_refused_with_what_could(
    family: Running, fields: dict[str, Any], param: str, says: str
) -> None:
    """O07 and its kin."""
    data, ending = await listen(family, speak("embedding", TEXT, **{"x_vector": None, **fields}))
    assert (data, ending.reason) == (b"", "error")
    assert ending.failure is not None
    assert (ending.failure.status, ending.failure.param) == (400, param)
    assert says in ending.failure.message


async def test_a_clone_speaks_alike_with_the_decoder_in_another_process(family: Running) -> None:
    folder = Path(family.layout.speech.models[2])
    split = layout.load("split")
    made = msgspec.structs.replace(split, speech=msgspec.structs.replace(split.speech, models=(str(folder),)))
    here, _ = await listen(family, speak("icl"))
    async with Running(made) as running:
        there, _ = await listen(running, speak("icl"))
    assert there == here
