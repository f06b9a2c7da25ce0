"""What Prometheus is told."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vivavoce.bus.messages import FAMILIES

TEXT = {"input": "Hi.", "voice": "ryan", "response_format": "pcm"}


async def read(http: httpx.AsyncClient) -> dict[str, float]:
    """Samples by name and labels, such as `vivavoce_requests_total{ending="stop",route="speech"}`."""
    reply = await http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


async def test_a_request_is_counted(http: httpx.AsyncClient) -> None:
    before = await read(http)
    reply = await http.post("/v1/audio/speech", json=TEXT)
    after = await read(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    frames = len(reply.content) / 3840
    assert grown('vivavoce_requests_total{ending="stop",route="speech"}') == 1
    assert grown("vivavoce_frames_total") == frames
    assert grown('vivavoce_tokens_total{kind="speech_text"}') > 0
    assert grown("vivavoce_ttfa_seconds_count") == grown("vivavoce_ttfa_audible_seconds_count") == 1
    assert grown("vivavoce_rtf_count") == 1
    for stage in FAMILIES["speech"]:
        assert grown(f'vivavoce_stage_seconds_count{{stage="{stage}"}}') == 1
        assert grown(f'vivavoce_stage_seconds_sum{{stage="{stage}"}}') > 0
    assert after["vivavoce_active_requests"] == after["vivavoce_queued_requests"] == 0
    assert "vivavoce_underrun_seconds_total" in after
    assert after['vivavoce_process_memory_bytes{process="main"}'] > 50e6


@pytest.mark.parametrize(
    ("body", "ending"),
    [({"input": " "}, "refused"), ({"voice": "nobody"}, "refused"), ({"language": "klingon"}, "error")],
)
async def test_refusals_are_counted_and_make_no_frames(
    http: httpx.AsyncClient, body: dict[str, str], ending: str
) -> None:
    before = await read(http)
    assert (await http.post("/v1/audio/speech", json={**TEXT, **body})).status_code == 400
    after = await read(http)
    name = f'vivavoce_requests_total{{ending="{ending}",route="speech"}}'
    assert after[name] - before.get(name, 0.0) == 1
    assert after["vivavoce_frames_total"] == before["vivavoce_frames_total"]
