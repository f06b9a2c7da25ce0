"""Spans, as a collector gets them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from vivavoce.api import tracing
from vivavoce.bus.messages import FAMILIES

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes what an exporter posts."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._more = anyio.Event()

    async def take(self, stream: SocketStream) -> None:
        async with stream:
            head, _, data = (await stream.receive()).partition(b"\r\n\r\n")
            assert head.startswith(b"POST /v1/traces ")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            while len(data) < length:
                data += await stream.receive()
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                named = {one.key: one.value.string_value for one in resource.resource.attributes}
                assert named["service.name"] == "vivavoce"
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self._more.set()

    async def until(self, count: int) -> dict[str, Span]:
        while len(self.spans) < count:
            self._more = anyio.Event()
            await self._more.wait()
        return {span.name: span for span in self.spans}


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    made = Collector()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, made.take)
            yield made
            tasks.cancel_scope.cancel()


async def test_a_request_and_its_stages_are_one_trace(
    collector: Collector, serve_with: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    body = {"input": "Hi.", "voice": "ryan", "response_format": "pcm"}
    called = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    async with serve_with() as server, httpx.AsyncClient(base_url=server.url) as http:
        reply = await http.post("/v1/audio/speech", json=body, headers=called)
        with anyio.fail_after(10):
            spans = await collector.until(1 + len(FAMILIES["speech"]))
    request = spans.pop("POST /v1/audio/speech")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    about = attributes(request)
    assert about["vivavoce.request_id"] == "mine"
    assert (about["http.response.status_code"], about["vivavoce.ending"]) == (200, "stop")
    assert about["vivavoce.frames"] == len(reply.content) / 3840
    assert set(spans) == {*FAMILIES["speech"]}
    for span in spans.values():
        assert (span.trace_id, span.parent_span_id) == (request.trace_id, request.span_id)
        assert request.start_time_unix_nano <= span.start_time_unix_nano < span.end_time_unix_nano
        assert span.end_time_unix_nano <= request.end_time_unix_nano


async def test_an_error_is_told(
    collector: Collector, serve_with: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    async with serve_with() as server, httpx.AsyncClient(base_url=server.url) as http:
        await http.post("/v1/audio/speech", json={"input": "Hi.", "language": "klingon"})
        with anyio.fail_after(10):
            failed = (await collector.until(2))["POST /v1/audio/speech"]
    assert failed.parent_span_id == b""
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert "klingon" in failed.status.message


async def test_chat_is_a_stage(
    collector: Collector, serve_chat: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}
    async with serve_chat() as server, httpx.AsyncClient(base_url=server.url) as http:
        await http.post("/v1/chat/completions", json=body)
        with anyio.fail_after(10):
            spans = await collector.until(2)
    assert spans["chat"].parent_span_id == spans["POST /v1/chat/completions"].span_id
    assert attributes(spans["chat"])["vivavoce.busy_s"] > 0


async def test_a_collector_that_does_not_answer_holds_up_no_end(
    serve_with: Callable[..., AbstractAsyncContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection and says nothing; the exporter itself would wait for a minute."""
    asked = anyio.Event()

    async def keep(stream: SocketStream) -> None:
        asked.set()
        async with stream:
            await anyio.sleep_forever()

    monkeypatch.setattr(tracing, "FAREWELL_S", 0.05)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, keep)
            with anyio.fail_after(20):
                async with serve_with() as server, httpx.AsyncClient(base_url=server.url) as http:
                    await http.get("/v1/models")
                    await asked.wait()
            tasks.cancel_scope.cancel()


def test_without_a_target_nothing_is_made() -> None:
    assert tracing.start() is None
