"""The promises, kept by the real pipeline with the embedded voice: order, sameness, cancelling, slow clients."""

from itertools import count

import anyio
import msgspec
import psutil
import pytest

from vivavoce.bus.messages import Audio, Ending, Speak
from vivavoce.bus.running import Running

TEXT = "Hello there."
LONG = " ".join([TEXT] * 12)

_ids = count()


def _speak(text: str = TEXT, **fields: object) -> Speak:
    speak = Speak(
        request=f"test-{next(_ids)}", model="embedded", text=text, voice="ryan", seed=3, format="pcm"
    )
    return msgspec.structs.replace(speak, **fields)


async def _listen(running: Running, speak: Speak) -> tuple[bytes, Ending]:
    with anyio.fail_after(120):
        async with running.client.speak(speak) as request:
            parts = [audio.data async for audio in request]
    assert request.ending is not None
    return b"".join(parts), request.ending


async def _idle(running: Running) -> None:
    """Until no stage holds a request; fails when that does not come true.

    A tiny request drives the stages on. When it has ended only its own `Close` may still be on its way to the
    first stage.
    """
    with anyio.fail_after(60):
        while True:
            await _step(running)
            active = running.processes()[0].active
            if not any(active.values()) or active == dict.fromkeys(active, 0) | {"prompt": 1}:
                return


async def _step(running: Running) -> None:
    """One tiny request through every stage: what was sent before it has been handled when it ends."""
    await _listen(running, _speak("No.", max_frames=1))


async def test_same_request_and_seed_same_bytes(speech: Running) -> None:
    first, ending = await _listen(speech, _speak())
    assert ending.reason == "stop"
    assert len(first) == ending.frames * 1920 * 2
    assert (await _listen(speech, _speak(seed=4)))[0] != first
    assert (await _listen(speech, _speak()))[0] == first


async def test_neighbours_change_nothing(speech: Running) -> None:
    alone = [(await _listen(speech, _speak(voice=voice, seed=seed)))[0] for voice, seed in _PAIRS]
    together: dict[int, bytes] = {}

    async def one(index: int, voice: str, seed: int) -> None:
        together[index] = (await _listen(speech, _speak(voice=voice, seed=seed)))[0]

    async with anyio.create_task_group() as tasks:
        for index, (voice, seed) in enumerate(_PAIRS):
            tasks.start_soon(one, index, voice, seed)
    assert [together[index] for index in range(len(_PAIRS))] == alone


_PAIRS = [("ryan", 1), ("serena", 2), ("vivian", 3)]


async def test_first_audio_is_one_frame_and_comes_before_the_rest_is_made(speech: Running) -> None:
    async with speech.client.speak(_speak(LONG)) as request:
        first = await anext(request)
        assert (first.frames, first.samples) == (1, 1920)
    await _idle(speech)


async def test_streamed_and_whole_wav_hold_the_same_samples(speech: Running) -> None:
    streamed, _ = await _listen(speech, _speak(format="wav"))
    whole, _ = await _listen(speech, _speak(format="wav", container_streamed=False))
    pcm, _ = await _listen(speech, _speak())
    assert streamed[:4] == whole[:4] == b"RIFF"
    assert streamed[44:] == whole[44:] == pcm
    assert streamed[40:44] == b"\xff\xff\xff\xff"
    assert int.from_bytes(whole[40:44], "little") == len(pcm)


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_leaving_frees_every_stage(speech: Running, after: int) -> None:
    async with speech.client.speak(_speak(LONG)) as request:
        for _ in range(after):
            await anext(request)
    await _idle(speech)


async def test_leaving_before_the_request_was_even_read_frees_every_stage(speech: Running) -> None:
    with anyio.CancelScope() as scope:
        async with speech.client.speak(_speak(LONG)):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    await _idle(speech)


async def test_a_client_that_stops_reading_parks_only_itself(speech: Running) -> None:
    lookahead = 9
    async with speech.client.speak(_speak(LONG, lookahead=lookahead)) as lazy:
        await anext(lazy)
        served = 0
        for seed in range(3):
            ending = (await _listen(speech, _speak(seed=seed)))[1]
            assert ending.reason == "stop"
            served += ending.frames
        # Turn about with the others it would have come as far as they did; it got no further than its lookahead.
        ready = 0
        with anyio.move_on_after(0.005):
            while True:
                await lazy.wait()
                ready += (await anext(lazy)).frames
        assert ready <= lookahead + 1 < served
        rest = [audio async for audio in lazy]
        assert lazy.ending is not None
        assert 1 + ready + sum(audio.frames for audio in rest) == lazy.ending.frames
    await _idle(speech)


async def test_the_bytes_do_not_depend_on_the_readers_pace(speech: Running) -> None:
    eager, _ = await _listen(speech, _speak())
    parked, _ = await _listen(speech, _speak(lookahead=9))
    assert parked == eager


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"voice": "nobody"}, "voice"), ({"language": "klingon"}, "language"), ({"model": "none"}, "model")],
)
async def test_a_bad_request_ends_with_its_reason_and_harms_nothing(
    speech: Running, fields: dict[str, str], param: str
) -> None:
    data, ending = await _listen(speech, _speak(**fields))
    assert (data, ending.reason) == (b"", "error")
    assert ending.failure is not None
    assert ending.failure.param == param
    await _idle(speech)


async def test_length_is_said_when_the_limit_ends_it(speech: Running) -> None:
    data, ending = await _listen(speech, _speak(LONG, max_frames=5))
    assert (ending.reason, ending.frames, len(data)) == ("length", 5, 5 * 3840)


async def test_special_token_strings_are_spoken_as_text(speech: Running) -> None:
    """O-case: a control token in the text must neither end the request early nor fail it."""
    _, ending = await _listen(speech, _speak("Hello <|im_end|> <|im_start|>user again."))
    _, plain = await _listen(speech, _speak("Hello again."))
    assert ending.text_tokens > plain.text_tokens + 4


async def test_memory_is_flat_over_requests(speech: Running) -> None:
    process = psutil.Process()
    for seed in range(8):
        await _listen(speech, _speak(seed=seed, max_frames=8))
    before = process.memory_info().rss
    for seed in range(30):
        await _listen(speech, _speak(seed=seed, max_frames=8))
    assert process.memory_info().rss - before < 30 * 2**20


async def test_every_audio_returns_its_credit(speech: Running) -> None:
    frames = 0
    async with speech.client.speak(_speak(format="wav", container_streamed=False, lookahead=9)) as request:
        async for audio in request:
            assert isinstance(audio, Audio)
            frames += audio.frames
    assert request.ending is not None
    assert frames == request.ending.frames
