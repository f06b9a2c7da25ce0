"""Many texts in one request."""

import base64

import httpx

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"


async def test_each_item_has_its_own_end(http: httpx.AsyncClient) -> None:
    common = {"model": "tts-1", "voice": "ryan", "response_format": "pcm", "seed": 3}
    items = [{"input": "Hi."}, {"input": " "}, {"input": "No.", "voice": "vivian", "max_new_tokens": 4}]
    reply = await http.post(BATCH, json={**common, "items": items})
    assert reply.status_code == 200
    body = reply.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 2, 1)
    first, blank, cut = body["results"]
    assert [result["index"] for result in body["results"]] == [0, 1, 2]
    single = await http.post(SPEECH, json={**common, "input": "Hi."})
    assert base64.b64decode(first["audio_data"]) == single.content
    assert first["media_type"] == "audio/pcm"
    assert first["finish_reason"] == "stop"
    assert first["usage"]["output_tokens"] == first["timing"]["frames"]
    assert blank["status"] == "error"
    assert blank["error"]["param"] == "input"
    assert len(base64.b64decode(cut["audio_data"])) == 4 * 3840
    assert cut["finish_reason"] == "length"


async def test_an_item_that_is_no_object_harms_no_other(http: httpx.AsyncClient) -> None:
    item = {"input": "Hi.", "voice": "ryan", "response_format": "pcm"}
    results = (await http.post(BATCH, json={"items": [item, 5]})).json()["results"]
    assert [result["status"] for result in results] == ["success", "error"]
    assert results[1]["error"]["message"] == "`items[1]` must be a JSON object."


async def test_limits(http: httpx.AsyncClient) -> None:
    for items in ([], [{"input": "Hi."}] * 33, "Hi.", None):
        reply = await http.post(BATCH, json={"items": items})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "items"
    assert (await http.get(BATCH)).status_code == 405
