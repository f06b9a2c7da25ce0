"""What flows between stages: one Struct a message, one union a link.

Every message names its request. Arrays stay as they are inside one event loop (an MLX array, perhaps not yet
computed) and travel as `Tensor` everywhere else. `SCHEMA` names this set; it is part of every hand-shake.

    api ─Speak,Text,Credit,Close▶ prompt ─Prompt▶ talker ─Hidden▶ code_predictor ─Codes▶ codec_decoder
                                                    ▲───────Feedback───────┘
                                                     api ◀Audio─ encoder ◀Pcm─ codec_decoder

    api ─Chat,ChatCredit,Close▶ chat ─ChatAccepted,ChatStarted,ChatDelta,ChatFinished,ChatDone▶ api

`Speak` or `Chat` opens a request in each stage, ahead of any data; `Ending` closes it, behind all of it.
"""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

SCHEMA = 4

EndReason = Literal["stop", "length", "cancelled", "error"]
FinishReason = Literal["stop", "length", "tool_calls"]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """An array on the wire: raw little-endian bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


if TYPE_CHECKING:
    Array = Any
else:
    # In one loop whatever array the sender made (constructing a Struct checks nothing); off a wire, a `Tensor`.
    Array = Tensor


class StageTime(msgspec.Struct, frozen=True, array_like=True):
    """When a stage had a request, in seconds since 1970."""

    begun: float
    ended: float
    busy_s: float
    """In turns that the stage took for it, waiting for the device included."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    request: str
    """Id of the request, unique for the life of the server."""


class Speak(Message, frozen=True, kw_only=True):
    """Opens a speech request."""

    model: str
    text: str
    voice: str | None = None
    language: str | None = None
    """Name or ISO code; None lets the model choose."""
    instructions: str | None = None
    seed: int
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_frames: int | None = None
    full_text: bool | None = None
    """True puts the whole text into the prefill; False feeds one text token per frame. None is the official code's
    choice: False for clones, else True."""
    clean: bool | None = None
    """Whether marks that nobody says are taken out of the text; None is the layout's choice."""
    more_text: bool = False
    """Whether `Text` follows; it is fed one token per frame."""
    reference: bytes | None = None
    """A voice to imitate, 16-bit little-endian mono PCM at 24 kHz. The first stage keeps it."""
    reference_text: str | None = None
    """What is said in it; without, the voice is imitated by its x-vector alone."""
    x_vector: bytes | None = None
    """A voice as speaker embedding, float32 little-endian, in place of a reference."""
    primer: Array | None = None
    """For the codec decoder, from the first stage: int32 [T, 16], what comes before the audio."""
    voice_key: str = ""
    """Of the primer: the same key, the same codes."""
    stored: str | None = None
    """Name of the stored voice that the reference is: what is computed of it may be kept on disk."""
    format: str = "pcm"
    sample_rate: int | None = None
    """Hz of what the encoder writes; None is the model's own rate."""
    speed: float = 1.0
    """Tempo of what the encoder writes, pitch kept."""
    container_streamed: bool = True
    """Whether the container is written before its length is known."""
    lookahead: int = 64
    """Frames that may be made before the first `Credit`; more than the codec decoder takes at once."""


class Text(Message, frozen=True, kw_only=True):
    """More text for a running request; `final` ends it."""

    text: str
    final: bool = False


class Credit(Message, frozen=True, kw_only=True):
    """The client took this many frames: as many more may be made."""

    frames: int
    played_s: float | None = None
    """Seconds of the audio that it says it has played by now, where it says so."""


class Close(Message, frozen=True, kw_only=True):
    """The API is done with the request, finished or not."""


class Prompt(Message, frozen=True, kw_only=True):
    """What the talker starts from: prefill [1, L, H], trailing text rows [1, n, H], padding row [1, 1, H]."""

    prefill: Array
    trailing: Array
    pad: Array
    text_tokens: int
    final: bool = True
    """False: more `Rows` follow."""
    static: int = 0
    """How many of the first rows depend on the voice alone; requests with the same `static_key` share them."""
    static_key: str = ""
    parts: int = 1
    """How many prompts the text has been cut into; they are spoken one behind the other."""
    pause: float = 0.0
    """Seconds of silence that there should be before the next of them."""
    spent: StageTime | None = None
    """By the stage `prompt` so far: the ending begins behind it."""


class Rows(Message, frozen=True, kw_only=True):
    """Text rows [1, n, H] of a text that is still arriving; `final` with its last ones."""

    rows: Array
    text_tokens: int
    final: bool
    spent: StageTime | None = None


class Hold(Message, frozen=True, kw_only=True):
    """The talker waits for text: these frames are all there is for now."""

    frames: int


class Seam(Message, frozen=True, kw_only=True):
    """A part of the text is spoken after `frames` frames; what was made beyond is void. The next part follows."""

    frames: int
    pause: float = 0.0
    """Seconds of silence that there should be between them."""


class Hidden(Message, frozen=True, kw_only=True):
    """The talker's hidden state [1, 1, H] and code group 0 [1, 1] of one frame."""

    frame: int
    hidden: Array
    code0: Array


class Feedback(Message, frozen=True, kw_only=True):
    """Sum of the frame's 16 code embeddings [1, 1, H], the talker's next input."""

    frame: int
    embedding: Array


class Codes(Message, frozen=True, kw_only=True):
    """All 16 codes of one frame, int32 [1, 16]."""

    frame: int
    codes: Array


class Pcm(Message, frozen=True, kw_only=True):
    """Decoded audio: 16-bit little-endian mono at the model's rate, 1,920 samples a frame; 0 frames are a pause."""

    frame: int
    frames: int
    samples: bytes


class Audio(Message, frozen=True, kw_only=True):
    """Bytes of the response's container; `frames` counts the codec frames taken in for them."""

    data: bytes
    frames: int
    samples: int
    """Samples of sound that went into the container, at its rate."""
    quiet: int = 0
    """How many of them come before the first that is not silence; all of them when none is."""


class Sampling(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How tokens of a chat are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token in prompt and answer."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    """Both count the tokens of the answer only."""
    logit_bias: dict[int, float] = {}
    seed: int | None = None


class Chat(Message, frozen=True, kw_only=True):
    """Opens a chat request: a conversation, or a plain prompt, to be continued `n` times."""

    model: str
    conversation: str = ""
    """JSON text of `stages.chat.conversation.Conversation`; JSON may hold numbers that msgpack cannot."""
    prompt: str | tuple[int, ...] | None = None
    """Text or tokens that are continued as they stand, in place of a conversation."""
    count_only: bool = False
    """Only `ChatAccepted` is wanted, for the length of the prompt."""
    max_tokens: int | None = None
    """None or more than fits: until the context is full."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning; its end is then forced, in models that end it with one token."""
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    """How many of the likeliest tokens to name beside each drawn one; None for no log-probabilities."""
    lookahead: int = 256
    """Tokens that may be made before the first `ChatCredit`; a request without credit is set aside."""


class ChatCredit(Message, frozen=True, kw_only=True):
    """The client took this many tokens: as many more may be made."""

    tokens: int


class ChatAccepted(Message, frozen=True, kw_only=True):
    """The request can be served; its prompt has not been read yet."""

    prompt_tokens: int


class ChatStarted(Message, frozen=True, kw_only=True):
    """The prompt has been read, as far as the prompt cache did not have it."""

    cached_tokens: int
    prompt_s: float


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A tool call, or a part of one as it is written: parts share id and name."""

    id: str
    name: str
    arguments: str
    """A JSON object as text; a part's are to be joined to those before."""


class Likely(msgspec.Struct, frozen=True, array_like=True):
    """A token and its log-probability."""

    data: bytes
    """UTF-8, of which a token may hold a part of a character."""
    logprob: float


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """A token of the answer among the likeliest ones, best first."""

    token: Likely
    top: tuple[Likely, ...]


class ChatDelta(Message, frozen=True, kw_only=True):
    """What one token, or the end of a choice, added; often nothing, where more has to come first."""

    choice: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    tokens: int = 1
    drawn: tuple[Drawn, ...] = ()


class ChatFinished(Message, frozen=True, kw_only=True):
    """The end of one choice."""

    choice: int
    reason: FinishReason
    stop: str | None = None
    """The stop string that was met."""


class ChatDone(Message, frozen=True, kw_only=True):
    """What a request came to, ahead of its `Ending`."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    accepted_tokens: int
    """Tokens of the draft model that were right."""
    rejected_tokens: int
    prompt_s: float
    generation_s: float


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a request failed, in the words of the error envelope."""

    status: int
    code: str
    message: str
    param: str | None = None


class Ending(Message, frozen=True, kw_only=True):
    """The one terminal message of a request."""

    reason: EndReason
    frames: int = 0
    text_tokens: int = 0
    failure: Failure | None = None
    stages: dict[str, StageTime] = {}
    """Of those that the ending has passed."""


def why(ending: Ending | None, otherwise: str) -> str:
    """The reason that an ending gives, where it gives one."""
    return ending.failure.message if ending and ending.failure else otherwise


ToPrompt = Speak | Text | Credit | Close
ToChat = Chat | ChatCredit | Close
FromChat = ChatAccepted | ChatStarted | ChatDelta | ChatFinished | ChatDone | Ending

# Each link of the stage graph and what it carries. A message goes to every link of its stage with its type.
LINKS: dict[tuple[str, str], Any] = {
    ("api", "prompt"): ToPrompt,
    ("prompt", "talker"): Speak | Prompt | Rows | Credit | Ending,
    ("talker", "code_predictor"): Speak | Hidden | Hold | Seam | Ending,
    ("code_predictor", "talker"): Feedback,
    ("code_predictor", "codec_decoder"): Speak | Codes | Hold | Seam | Ending,
    ("codec_decoder", "encoder"): Speak | Pcm | Ending,
    ("encoder", "api"): Speak | Audio | Ending,
    ("api", "chat"): ToChat,
    ("chat", "api"): FromChat,
}

FAMILIES: dict[str, tuple[str, ...]] = {
    "speech": ("prompt", "talker", "code_predictor", "codec_decoder", "encoder"),
    "chat": ("chat",),
}
