"""Measure a checkpoint with a recogniser that has never heard it.

    python -m tools.voice.evaluate speech CHECKPOINT/ --whisper DIR_OR_NAME     word error rate, both text layouts
    python -m tools.voice.evaluate endings CHECKPOINT/ TEXTS.jsonl              does every utterance end by itself?
    python -m tools.voice.evaluate codec CHECKPOINT/ quantizer.npz              the engines, and the codec alone
    python -m tools.voice.evaluate files MANIFEST.json                          sound made elsewhere
    python -m tools.voice.evaluate clones CHECKPOINT/ quantizer.npz voice_row.npy    like their references?
    python -m tools.voice.evaluate descriptions CHECKPOINT/                     as described?

eval_sentences.txt holds forty sentences that no training text contains. The recogniser is faster-whisper's tiny.en
or base.en (a model's name or a folder); it reads greedily, without earlier text. A sentence counts at most as many
errors as it has words. MANIFEST.json is a list of {"file", "text", "voice"}; the files are 24 kHz mono WAV.
"""

import argparse
import json
import time
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .flite import Flite
from .generate import Cloned, Described, Speaker, write_wav
from .likeness import described, followed, likeness, read_descriptions, references
from .listener import Listener, Sound, percent
from .quantizer import Quantizer
from .spoken import spoken
from .synth import say
from .voices import PRESETS, everyone

SENTENCES = Path(__file__).with_name("eval_sentences.txt").read_text().splitlines()


def speech(args: argparse.Namespace) -> None:
    """Text to speech, each voice in both layouts."""
    speaker, listener = Speaker(args.checkpoint), Listener(args.whisper)
    for name in ("temperature", "subtalker_temperature"):
        if args.temperature is not None:
            setattr(speaker.sampling, name, args.temperature)
    texts = SENTENCES[: args.limit]
    for streamed in (False, True) if args.layout == "both" else (args.layout == "streamed",):
        total, cut = (0, 0), 0
        for voice in args.voices:
            spoken_rows = speaker.speak(texts, voice, args.seed, streamed=streamed)
            cut += sum(not row.ended for row in spoken_rows)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                for i, row in enumerate(spoken_rows):
                    write_wav(
                        args.keep / f"{voice}-{'streamed' if streamed else 'whole'}-{i:02d}.wav", row.samples
                    )
            counts = listener.rate(zip(texts, (row.samples for row in spoken_rows), strict=True), args.show)
            total = (total[0] + counts[0], total[1] + counts[1])
            print(f"{'streamed' if streamed else 'whole'} text, {voice}: {percent(counts)}", flush=True)
        layout = "streamed" if streamed else "whole"
        print(f"{layout} text: {percent(total)} of {total[1]} words wrong, {cut} not ended", flush=True)


def endings(args: argparse.Namespace) -> None:
    """Lengths and endings of many utterances; no sound is made."""
    speaker = Speaker(args.checkpoint)
    texts = [json.loads(line)["raw"] for line in args.texts.read_text().splitlines()[-args.count :]]
    cut, odd, total, began = 0, 0, 0, time.monotonic()
    for number, at in enumerate(range(0, len(texts), 30)):
        part, preset = texts[at : at + 30], PRESETS[number % len(PRESETS)]
        rows = speaker.speak(part, preset.name, args.seed + number, streamed=bool(number % 2), sound=False)
        for text, row in zip(part, rows, strict=True):
            frames, usual = len(row.codes), 4 + len(spoken(text)) * 0.95
            cut += not row.ended
            strange = row.ended and not usual * 0.4 < frames < usual * 2 + 10
            odd += strange
            if not row.ended or strange:
                print(f"  {preset.name}: {frames} frames for {text!r}", flush=True)
        total += len(part)
    seconds = time.monotonic() - began
    print(
        f"{total} utterances: {cut} ran into the limit of 20 s, {odd} much too short or long ({seconds:.0f} s)"
    )


def codec(args: argparse.Namespace) -> None:
    """The engines themselves, and their speech through the codec."""
    decoder, quantizer = Speaker(args.checkpoint).decoder, Quantizer.load(args.quantizer)
    listener, engine = Listener(args.whisper), Flite()
    for name in args.voices:
        voice = next(i for i, preset in enumerate(PRESETS) if preset.name == name)
        plain: list[tuple[str, Sound]] = []
        coded: list[tuple[str, Sound]] = []
        for text in SENTENCES[: args.limit]:
            part = say(engine, PRESETS[voice], spoken(text))
            if part is None:
                continue
            voices = np.full(len(part.envelope), voice)
            codes = quantizer.encode(part.envelope, part.voicing, part.pitch, voices)
            with torch.no_grad():
                coded.append((text, decoder(torch.from_numpy(codes).long().T[None])[0].numpy()))
            plain.append((text, part.samples.astype(np.float32) / 32768))
        print(f"{name}: engine {percent(listener.rate(plain, args.show))}", flush=True)
        print(f"{name}: codec {percent(listener.rate(coded, args.show))}", flush=True)


def clones(args: argparse.Namespace) -> None:
    """Strangers cloned from two sentences by their row alone and with the reference, in each layout."""
    speaker, listener, engine = Speaker(args.checkpoint), Listener(args.whisper), Flite()
    quantizer, weight = Quantizer.load(args.quantizer), np.load(args.voice_row)
    heard = references(engine, SENTENCES[:20], args.count)
    texts = SENTENCES[20 : 20 + args.limit]
    known = np.stack([voice.traits for voice in everyone(len(quantizer.speakers) - len(PRESETS))])
    voices: list[Cloned] = []
    for reference in heard:
        # The mean of the voice most like it.
        nearest = ((known - reference.voice.traits) ** 2).sum(1).argmin()
        part = say(engine, reference.voice, spoken(reference.said))
        assert part is not None
        codes = quantizer.encode(
            part.envelope, part.voicing, part.pitch, np.full(len(part.envelope), nearest)
        )
        voices.append(Cloned(weight @ reference.voice.traits, reference.said, codes))
    rows = [(i, text) for i in range(len(heard)) for text in texts]
    for layout in ("row alone, full", "row alone, streaming", "full", "streaming", "reference_first"):
        manners = [
            replace(
                voices[i],
                codes=None if "alone" in layout else voices[i].codes,
                said="" if "alone" in layout else voices[i].said,
                reference_first=layout == "reference_first",
            )
            for i, _ in rows
        ]
        spoken_rows = speaker.speak(
            [text for _, text in rows], manners, args.seed, streamed="streaming" in layout
        )
        sounds = [row.samples for row in spoken_rows]
        nearer, semitones = likeness(
            [reference.samples for reference in heard],
            [(i, sound) for (i, _), sound in zip(rows, sounds, strict=True)],
        )
        wrong = listener.rate(((text, s) for (_, text), s in zip(rows, sounds, strict=True)), args.show)
        cut = sum(not row.ended for row in spoken_rows)
        print(
            f"{layout}: nearer to their own in {100 * nearer:.1f} % of pairs, pitch off by {semitones:.2f} "
            f"semitones, {percent(wrong)} of words wrong, {cut} of {len(rows)} not ended",
            flush=True,
        )


def descriptions(args: argparse.Namespace) -> None:
    """Voices made from descriptions, in the wordings of the training and in others."""
    speaker, listener, engine = Speaker(args.checkpoint), Listener(args.whisper), Flite()
    others = read_descriptions(Path(__file__).with_name("eval_descriptions.txt"))
    for name, wanted in (("as trained", described(args.count, args.seed)), ("in other words", others)):
        texts = [SENTENCES[i % len(SENTENCES)] for i in range(len(wanted))]
        spoken_rows = speaker.speak(texts, [Described(one.text) for one in wanted], args.seed)
        found: dict[str, list[bool]] = {"sex": [], "pitch": [], "pace": []}
        for one, text, row in zip(wanted, texts, spoken_rows, strict=True):
            kept = followed(engine, one, text, row.samples)
            for aspect, right in kept.items():
                found[aspect].append(right)
            if args.show and not all(kept.values()):
                print(f"    {kept} {one.text}", flush=True)
        wrong = listener.rate(zip(texts, (row.samples for row in spoken_rows), strict=True), args.show)
        shares = ", ".join(
            f"{aspect} {100 * sum(right) / len(right):.0f} % of {len(right)}"
            for aspect, right in found.items()
        )
        cut = sum(not row.ended for row in spoken_rows)
        print(f"{name}: {shares} followed; {percent(wrong)} of words wrong, {cut} not ended", flush=True)


def files(args: argparse.Namespace) -> None:
    """Sound that something else made."""
    listener = Listener(args.whisper)
    voices: dict[str, list[tuple[str, Sound]]] = {}
    for entry in json.loads(args.manifest.read_text()):
        with wave.open(str(args.manifest.parent / entry["file"])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        voices.setdefault(entry["voice"], []).append((entry["text"], samples))
    for voice, sounds in voices.items():
        print(f"{voice}: {percent(listener.rate(sounds, args.show))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)

    def part(function: Any, *names: str, heard: bool = True) -> argparse.ArgumentParser:
        command = parts.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(run=function)
        for name in names:
            command.add_argument(name, type=Path)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--limit", type=int, default=len(SENTENCES), help="use only the first sentences")
        command.add_argument("--voices", nargs="+", default=["ryan", "serena", "vivian"])
        if heard:
            command.add_argument(
                "--whisper", default="tiny.en", help="a faster-whisper model's name or folder"
            )
            command.add_argument("--show", action="store_true", help="print what was misheard")
        return command

    command = part(speech, "checkpoint")
    command.add_argument("--temperature", type=float, help="instead of generation_config.json's")
    command.add_argument("--layout", choices=("whole", "streamed", "both"), default="both")
    command.add_argument("--keep", type=Path, help="folder for the sound")
    part(endings, "checkpoint", "texts", heard=False).add_argument("--count", type=int, default=300)
    part(codec, "checkpoint", "quantizer")
    part(files, "manifest")
    command = part(clones, "checkpoint", "quantizer", "voice_row")
    command.add_argument("--count", type=int, default=20, help="references")
    command.set_defaults(limit=2)
    part(descriptions, "checkpoint").add_argument("--count", type=int, default=60)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
