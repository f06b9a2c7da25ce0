"""One choice of a request while it is decoded."""

import secrets

import mlx.core as mx

from ...bus.messages import ChatFinished, FinishReason
from .events import Delta, Event, Failed, Request, TokenLogprob, ToolCall
from .model import ChatModel
from .reply import Piece, Reply
from .sampling import Adjuster, Likelihood, adjusts, key


class Row:
    """Takes the tokens drawn for it and says what they mean. At most `limit` are drawn."""

    def __init__(self, request: Request, choice: int, model: ChatModel, seed: int) -> None:
        self.request = request
        self.choice = choice
        self.key = key(seed, choice)
        self.limit = model.context - len(request.prompt)
        if request.max_tokens is not None:
            self.limit = min(self.limit, request.max_tokens)
        self.drawn = 0
        """Tokens drawn on the device, read or not."""
        self.taken = 0
        self.reasoning = 0
        """Tokens taken while reasoning."""
        self.likelihood: Likelihood | None = None
        """Of the token drawn last, if the request asks for it."""
        self.over = False
        self._called = False
        """Whether there was a whole call."""
        self._id = secrets.token_hex(10)
        self._ends = model.turn_ends
        self._reply = Reply(request.style, request.stop)
        self.matcher = model.grammars.matcher(request.grammar) if request.grammar else None
        sampling = request.sampling
        self._adjuster = Adjuster(sampling, request.prompt, model.vocab) if adjusts(sampling) else None
        self._think_end = model.think_end if request.thinking_tokens is not None else None
        self._vocab = model.vocab
        self._not_ends = model.not_ends

    @property
    def special(self) -> bool:
        """Whether the logits are changed before a token is drawn."""
        return self._adjuster is not None or self.matcher is not None or self._thought_enough(0)

    @property
    def waits(self) -> bool:
        """Whether the next token may depend on the one drawn last, so that this has to be taken first."""
        return self.matcher is not None or self._thought_enough(1)

    def _thought_enough(self, more: int) -> bool:
        """Whether with so many tokens more it is time to end the reasoning."""
        most = self.request.thinking_tokens
        if most is None or self._think_end is None:
            return False
        return self._reply.reasoning and self.reasoning + more >= most

    @property
    def last(self) -> bool:
        """Whether the token drawn last is the last one allowed."""
        return self.drawn >= self.limit

    def count(self, token: mx.array) -> None:
        if self._adjuster is not None:
            self._adjuster.count(token)

    def adjust(self, logits: mx.array, ahead: mx.array | None = None) -> mx.array:
        """Penalties, bias and grammar on logits fp32 [V]; every token but `ahead` must have been taken."""
        if self._adjuster is not None:
            logits = self._adjuster(logits, ahead)
        if self._thought_enough(0):
            logits = mx.where(mx.arange(self._vocab) == self._think_end, logits, -mx.inf)
        elif self.matcher is not None:
            # Reasoning is free, but may not end the reply before the answer.
            mask = self._not_ends if self._reply.reasoning else self.matcher.mask()
            logits = mx.where(mask, logits, -mx.inf)
        return logits

    def weigh(self, logits: mx.array, token: mx.array) -> None:
        """Note the likelihood of a drawn token [] under logits fp32 [V], if the request asks for it."""
        if self.request.logprobs is not None:
            self.likelihood = Likelihood(logits, token, self.request.logprobs)

    def take(self, token: int, likelihood: Likelihood | None) -> list[Event]:
        """Read one token; `over` is set with the last one."""
        self.taken += 1
        logprob = TokenLogprob(token, *likelihood.read()) if likelihood else None
        was_reasoning = self._reply.reasoning
        self.reasoning += was_reasoning
        if self.matcher is not None and not was_reasoning:
            self.matcher.take(token)
            if self.matcher.error:
                self.over = True
                return [Failed(self.request.id, f"The grammar cannot be followed: {self.matcher.error}")]
        if token in self._ends:
            return self._finish("stop", Piece(), logprob)
        piece = self._reply.push(token)
        if self._reply.stopped is not None or (self.matcher is not None and self.matcher.ended):
            return self._finish("stop", piece, logprob)
        if self.taken >= self.limit:
            return self._finish("length", piece, logprob)
        return [self._delta(piece, logprob)]

    def _finish(self, reason: FinishReason, piece: Piece, logprob: TokenLogprob | None) -> list[Event]:
        rest = self._reply.finish(cut=reason == "length")
        whole = Piece(piece.text + rest.text, piece.reasoning + rest.reasoning, piece.calls + rest.calls)
        delta = self._delta(whole, logprob)
        if reason == "stop" and self._called:
            reason = "tool_calls"
        if reason == "length" and self._reply.stopped is not None:
            reason = "stop"
        self.over = True
        return [
            delta,
            ChatFinished(
                request=self.request.id, choice=self.choice, reason=reason, stop=self._reply.stopped
            ),
        ]

    def _delta(self, piece: Piece, logprob: TokenLogprob | None) -> Delta:
        calls = tuple(
            ToolCall(part.name, part.arguments, f"call_{self._id}{part.number:04x}") for part in piece.calls
        )
        self._called = self._called or any(part.last for part in piece.calls)
        return Delta(
            request=self.request.id,
            choice=self.choice,
            text=piece.text,
            reasoning=piece.reasoning,
            calls=calls,
            logprobs=(logprob,) if logprob else (),
        )
