"""A wrong layout is refused before any weight is read, with file, key and what is allowed."""

from pathlib import Path

import msgspec
import pytest

from vivavoce.bus import layout
from vivavoce.bus.errors import LayoutError
from vivavoce.bus.messages import LINKS

GOOD = """
name = "mine"
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
"""


def test_shipped_layouts_are_sound() -> None:
    for name in layout.names():
        assert layout.load(name).name == name


def test_links_and_transports_follow_from_the_placement() -> None:
    speech = layout.parse(GOOD, "mine.toml")
    transports = {(link.source, link.target): speech.transport(link) for link in speech.links()}
    assert set(transports) == {edge for edge in LINKS if set(edge) <= set(speech.stages())}
    assert transports["api", "prompt"] == "inproc"
    assert transports["talker", "code_predictor"] == "memory"
    assert transports["encoder", "api"] == "memory"


TWO = """
name = "two"
[[process]]
name = "main"
loop = ["api", "encoder"]
device = ["prompt", "talker", "code_predictor", "codec_decoder"]
[[process]]
name = "chat"
device = ["chat"]
"""


@pytest.mark.parametrize(
    ("text", "lessees", "sharing"),
    [
        (GOOD, {}, None),
        (GOOD.replace("device = [", 'device = ["chat", '), {}, "thread"),
        (TWO, {"main": ("speech",), "chat": ("chat",)}, "lease"),
        (TWO + '[schedule]\npolicy = "race"', {}, None),
        (TWO.replace('device = ["chat"]', 'device = ["chat"]\ncontrol = "tcp://box:1"'), {}, None),
    ],
    ids=["speech alone", "one thread", "two processes", "each as it likes", "another machine"],
)
def test_a_device_is_leased_where_processes_share_one(
    text: str, lessees: dict[str, tuple[str, ...]], sharing: str | None
) -> None:
    made = msgspec.toml.decode(text, type=layout.Layout)
    assert made.lessees() == lessees
    assert made.sharing("main") == sharing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (GOOD.replace("loop =", "lop ="), ["unknown field `lop`", "allowed: name, loop, device"]),
        (GOOD + "[speech]\nmodells = []", ["unknown field `modells`", "lookahead_frames"]),
        (GOOD + '[speech]\nmodels = "embedded"', ["Expected `array`", "$.speech.models"]),
        (GOOD + '[speech]\ndtype = "int3"', ["$.speech.dtype"]),
        (GOOD.replace('"talker", ', ""), ["speech needs", "not placed: talker"]),
        (GOOD.replace('"talker"', '"talkr"'), ["unknown stage 'talkr'", "allowed: api, prompt"]),
        (GOOD.replace('"encoder"]', '"encoder", "talker"]'), ["'talker'", "place it in `device`"]),
        (GOOD.replace("device = [", 'device = ["api", '), ["'api'", "place it in `loop`"]),
        (GOOD.replace('["api", "encoder"]', '["encoder"]'), ["no process runs the stage 'api'"]),
        (GOOD + '[[process]]\nname = "main"', ["two processes have the same name"]),
        (GOOD + '[[process]]\nname = "b"\nloop = ["encoder"]', ["'encoder' is placed 2 times"]),
        ('name = "x"\n[[process]]\nname = "m"\nloop = ["api"]', ["nothing to serve"]),
        (GOOD + '[[link]]\nfrom = "codec_decoder"\nto = "talker"', ["cycle", "prompt→talker"]),
        (GOOD + '[[link]]\nfrom = "prompt"\nto = "encoder"', ["joins nothing", "api→prompt"]),
        (GOOD + '[[link]]\nfrom = "api"\nto = "nowhere"', ["joins nothing"]),
        (GOOD + '[[link]]\nfrom = "api"\nto = "prompt"\n' * 2, ["given twice"]),
        (
            GOOD + '[[link]]\nfrom = "talker"\nto = "code_predictor"\ncapacity = 2',
            ["talker→code_predictor.capacity", "could lock up the cycle"],
        ),
        (GOOD + '[[link]]\nfrom = "api"\nto = "prompt"\ncapacity = 0', ["api→prompt.capacity", "1 or more"]),
        (GOOD + "[speech]\nlookahead_frames = 8", ["speech.lookahead_frames", "more than"]),
        (GOOD + "[speech]\nchunk_rtf = 1.5", ["speech.chunk_rtf", "up to 1"]),
        (GOOD + "[chat]\nrows = 0", ["chat.rows", "1 or more"]),
        (GOOD + "[chat]\nkv_bits = 3", ["$.chat.kv_bits"]),
        (GOOD + "[api]\nport = 70000", ["api.port", "65535"]),
        (GOOD + '[api]\napi_key = ""', ["api.api_key", "empty"]),
        (GOOD + '[schedule]\npolicy = "fair"', ["$.schedule.policy"]),
        (GOOD + "[schedule]\nreserve = 1", ["schedule.reserve", "below 1"]),
        (GOOD + "[schedule]\nslice_s = 0.0", ["schedule.slice_s", "above 0"]),
        (GOOD + '[schedule]\npolicy = "pace"\nlead_s = 0.5', ["schedule.lead_s", "0.64 s"]),
        (GOOD + "[chat]\nslice_tokens = 0", ["chat.slice_tokens", "1 or more"]),
        (GOOD + "[chat]\nchunk = 64\nslice_tokens = 65", ["chat.slice_tokens", "up to chat.chunk (64)"]),
        (GOOD + '[chat]\nslice_tokens = "fast"', ["$.chat.slice_tokens", "allowed: int, measured"]),
        (GOOD + '[schedule]\npolicy = "fair"', ["$.schedule.policy", "allowed: race, pace, deadline"]),
        (GOOD + "[schedule]\nburst_s = nan", ["schedule.burst_s", "finite"]),
        (GOOD + "[schedule]\nslack_s = inf", ["schedule.slack_s", "finite"]),
        (GOOD + "[supervision]\nbeat_s = nan", ["supervision.beat_s", "finite"]),
        (GOOD + "[speech]\nsilence_limit_s = -1", ["speech.silence_limit_s", "0 or more"]),
        (GOOD + "[speech]\nmodels = []", ["speech.models", "such as embedded"]),
        (GOOD + '[speech]\nmodels = ["a=x", "a=y"]', ["speech.models", "2 are named 'a'", "NAME=SOURCE"]),
        (GOOD + '[chat]\nmodels = ["m"]', ["chat.models", "no process runs the stage 'chat'"]),
        (TWO + '[chat]\nmodels = ["x/embedded"]', ["chat.models", "2 are named 'embedded'"]),
        (GOOD + '[[process]]\nname = "idle"', ["process.idle", "runs no stages"]),
        (GOOD + "[api]\nfirst_audio_timeout_s = -1", ["api.first_audio_timeout_s", "above 0"]),
        (GOOD + "[api]\nkeep_alive_s = 0", ["api.keep_alive_s", "above 0"]),
        (GOOD + "[api]\ndrain_s = -1", ["api.drain_s", "above 0"]),
        (GOOD + "[chat]\ntoken_timeout_s = nan", ["chat.token_timeout_s", "finite"]),
        (GOOD + '[api.model_aliases]\na = "b"\nb = "a"', ["api.model_aliases", "'a' leads back to itself"]),
        ("name = ", ["not valid TOML"]),
    ],
)
def test_refused_with_file_key_and_what_is_allowed(change: str, words: list[str]) -> None:
    with pytest.raises(LayoutError) as error:
        layout.parse(change, "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    for word in words:
        assert word in str(error.value)


def test_unknown_name_lists_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="speech"):
        layout.load("nonesuch")
    with pytest.raises(LayoutError, match="no such layout file"):
        layout.load(tmp_path / "none.toml")
