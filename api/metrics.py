"""What Prometheus reads at `/metrics`."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from quart import Blueprint, Response

from ..bus.messages import Ending
from ..bus.running import Running
from .admission import Admission
from .chat_job import ChatFigures
from .operations import Operation
from .timing import Figures

OPERATIONS = (
    Operation(
        method="get",
        path="/metrics",
        summary="Figures for Prometheus.",
        answers={"text/plain": {"type": "string"}},
    ),
)

_FIRST_AUDIO = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2, 5, 10, 30)
_RTF = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2, 3, 5)
_STAGE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One for each app, with a registry of its own."""

    def __init__(self, running: Running, admission: Admission, chats: Admission) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_Processes(running))
        self._requests = Counter(
            "vivavoce_requests", "Requests by how they ended.", ["route", "ending"], registry=registry
        )
        for name, text, value in (
            ("vivavoce_active_requests", "Requests in the pipelines.", lambda: admission.active),
            ("vivavoce_queued_requests", "Requests that wait for a place.", lambda: admission.waiting),
            ("vivavoce_active_chats", "Chat requests in the pipeline.", lambda: chats.active),
            ("vivavoce_queued_chats", "Chat requests that wait for a place.", lambda: chats.waiting),
        ):
            Gauge(name, text, registry=registry).set_function(value)
        self._ttfa = Histogram(
            "vivavoce_ttfa_seconds", "Request to first audio.", registry=registry, buckets=_FIRST_AUDIO
        )
        self._ttft = Histogram(
            "vivavoce_ttft_seconds", "Request to first token.", registry=registry, buckets=_FIRST_AUDIO
        )
        self._audible = Histogram(
            "vivavoce_ttfa_audible_seconds",
            "Request to the first sample that is not silence, as a player hears it.",
            registry=registry,
            buckets=_FIRST_AUDIO,
        )
        self._rtf = Histogram(
            "vivavoce_rtf", "Seconds of work for each second of audio.", registry=registry, buckets=_RTF
        )
        self._stage = Histogram(
            "vivavoce_stage_seconds",
            "Time that a stage's turns took for one request.",
            ["stage"],
            registry=registry,
            buckets=_STAGE,
        )
        self._frames = Counter("vivavoce_frames", "Codec frames made.", registry=registry)
        self._tokens = Counter("vivavoce_tokens", "Tokens by kind.", ["kind"], registry=registry)
        self._underrun = Counter(
            "vivavoce_underrun_seconds", "Time that players would have starved.", registry=registry
        )

    def refused(self, route: str) -> None:
        """A request that never reached a pipeline."""
        self._requests.labels(route, "refused").inc()

    def spoken(self, route: str, ending: Ending, figures: Figures) -> None:
        """A speech request that has ended."""
        good = ending.reason in ("stop", "length")
        self._requests.labels(route, ending.reason).inc()
        self._frames.inc(figures.frames)
        self._tokens.labels("speech_text").inc(ending.text_tokens)
        self._underrun.inc(figures.underrun_s)
        for histogram, value in (
            (self._ttfa, figures.ttfa_s),
            (self._audible, figures.ttfa_audible_s),
            (self._rtf, figures.rtf if good else None),
            *((self._stage.labels(name), time.busy_s) for name, time in ending.stages.items()),
        ):
            if value is not None:
                histogram.observe(value)

    def chatted(self, route: str, ending: str, figures: ChatFigures, tokens: tuple[int, int, int]) -> None:
        """A chat request that has ended; `tokens` of its prompt, of those cached, and of its answer."""
        self._requests.labels(route, ending).inc()
        if figures.ttft_s is not None:
            self._ttft.observe(figures.ttft_s)
        for kind, count in zip(("chat_prompt", "chat_cached", "chat_completion"), tokens, strict=True):
            self._tokens.labels(kind).inc(count)
        if busy_s := figures.prompt_s + figures.generation_s:
            self._stage.labels("chat").observe(busy_s)


class _Processes(Collector):
    """Memory of each process, read when asked."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def collect(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "vivavoce_process_memory_bytes", "Resident memory of each process.", labels=["process"]
        )
        steps = GaugeMetricFamily(
            "vivavoce_process_device_steps",
            "Device steps of each process since its start.",
            labels=["process"],
        )
        for process in self._running.processes():
            memory.add_metric([process.name], process.rss_bytes)
            steps.add_metric([process.name], process.device_steps)
        yield memory
        yield steps


def blueprint(metrics: Metrics) -> Blueprint:
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    async def read() -> Response:
        return Response(generate_latest(metrics.registry), content_type=CONTENT_TYPE_LATEST)

    _ = read
    return routes
