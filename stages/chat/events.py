"""What goes into the engine and what comes out of it."""

import msgspec

from ...bus.messages import ChatDone, ChatFinished, Sampling
from .grammar import Grammar
from .reply import Style


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call, or the next part of one, with the same id and name."""

    name: str
    arguments: str
    """What comes next of a JSON object's text; one that is never whole was cut, or is not JSON."""
    id: str


class TokenLogprob(msgspec.Struct, frozen=True):
    token: int
    logprob: float
    top: list[tuple[int, float]]
    """(token, log-probability) of the likeliest tokens, best first."""


class Request(msgspec.Struct, kw_only=True):
    """One prompt to continue, `n` times."""

    id: str
    prompt: list[int]
    style: Style
    max_tokens: int | None = None
    """None or more than fits: until the context is full."""
    thinking_tokens: int | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    """How many of the likeliest tokens to name beside the drawn one; None for no log-probabilities."""
    grammar: Grammar | None = None
    """What the answer, after any reasoning, has to match."""


class Started(msgspec.Struct, frozen=True):
    """The prompt has been read."""

    request: str
    prompt_tokens: int
    cached_tokens: int
    prompt_s: float


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one token, or the end of a choice, added."""

    request: str
    choice: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """The request ended here because of us."""

    request: str
    message: str


Event = Started | Delta | ChatFinished | ChatDone | Failed
