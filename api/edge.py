"""What the routes share: the running pipelines, names, places, and the account of every request."""

import logging
import secrets
from typing import Any

import msgspec

from ..bus.messages import Speak
from ..bus.running import Running
from ..configs.voice_store import VoiceStore
from . import tracing
from .admission import Admission
from .catalog import Catalog
from .chat_job import ChatJob
from .cloning import Likeness
from .errors import BusyError
from .exchange import Exchanges
from .job import SpeechJob
from .metrics import Metrics
from .pace import Pace
from .schema import Speaking, VoiceId, check_text
from .timing import stage_seconds

log = logging.getLogger(__name__)


class Edge:
    """One for each app."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.layout = running.layout
        self.settings = running.layout.api
        self.client = running.client
        self.catalog = Catalog(lambda: running.models, self.settings)
        self.voices = VoiceStore(self.settings.voices_folder)
        self.exchanges = Exchanges()
        self.pace = Pace()
        self.admission = Admission(self.settings.max_concurrent, self.settings.max_queued)
        chat = self.layout.chat
        self.chat_admission = Admission(chat.max_concurrent, chat.max_queued)
        self.metrics = Metrics(running, self.admission, self.chat_admission)
        self.tracing = tracing.start()

    def speak(
        self,
        request: str,
        text: str,
        how: Speaking,
        *,
        streamed: bool,
        more_text: bool = False,
        likeness: Likeness | None = None,
    ) -> Speak:
        """The pipeline's request for a client's wishes, by the id `request`.

        :param more_text: the text is only a beginning.
        :param likeness: the voice to imitate, from `cloning.likeness`.

        :raises RequestError: an unknown model or voice, an empty or too long text.
        """
        model = self.catalog.choose(how.model, how.task_type, cloning=likeness is not None)
        voice = how.voice.id if isinstance(how.voice, VoiceId) else how.voice
        # Who asks for `tts-1` cannot know what model that is here: it may send what OpenAI's takes.
        ignored = how.model != model.name and model.kind == "custom_voice" and not model.instructions
        return Speak(
            request=request,
            model=model.name,
            text=text if more_text else check_text(text, self.settings.max_text_letters),
            more_text=more_text,
            voice=None if likeness is not None and likeness.stored else self.catalog.voice(model, voice),
            reference=likeness.pcm if likeness is not None else None,
            reference_text=likeness.text if likeness is not None else None,
            x_vector=likeness.x_vector if likeness is not None else None,
            stored=likeness.stored if likeness is not None else None,
            full_text=how.non_streaming_mode,
            clean=how.clean_text,
            language=how.language,
            instructions=None if ignored else how.instructions,
            # Short enough for a JavaScript number, so that it survives the way back.
            seed=secrets.randbelow(2**32) if how.seed is None else how.seed,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            repetition_penalty=how.repetition_penalty,
            max_frames=how.max_new_tokens or how.max_tokens,
            format=how.response_format or "mp3",
            sample_rate=how.sample_rate,
            speed=how.speed,
            container_streamed=streamed,
            lookahead=self.layout.speech.lookahead_frames,
        )

    def refuse_if_down(self, family: str = "speech") -> None:
        """:raises BusyError: a stage has died or stands still; it says when to try again."""
        if outage := self.running.outage(family):
            raise BusyError(
                f"{family.capitalize()} cannot be served now: {outage.reason}.",
                status=503,
                code="stage_down",
                retry_after_s=outage.retry_after_s,
            )

    def finished(self, job: SpeechJob) -> None:
        """Called once for every job."""
        figures = job.figures()
        self.metrics.spoken(job.route, job.ending, figures)
        timing = {**msgspec.to_builtins(figures), "stages": stage_seconds(job.ending)}
        self._tell(job, f"{figures.frames} frames", timing)

    def chatted(self, job: ChatJob) -> None:
        """Called once for every chat job."""
        figures = job.figures()
        tokens = job.tokens()
        if not job.chat.count_only:
            self.metrics.chatted(job.route, job.ending.reason, figures, tokens)
        self._tell(job, f"{tokens[-1]} tokens", msgspec.to_builtins(figures))

    def _tell(self, job: SpeechJob | ChatJob, made: str, timing: dict[str, Any]) -> None:
        """The log and the traces of a job's ending."""
        failure, ending = job.failure(), job.ending
        why = f": {failure.message}" if failure else ""
        told = {"request": ending.request, "ending": ending.reason, "timing": timing}
        log.info("%s: %s after %s%s", job.route, ending.reason, made, why, extra=told)
        if self.tracing is not None:
            self.tracing.ended(ending, timing)
