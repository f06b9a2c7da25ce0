"""What the vectors are made of: texts, prompts, sampling settings. Only data."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    """One request as the official wrapper takes it."""

    text: str
    speaker: str | None = "ryan"
    language: str | None = "English"
    instruct: str | None = None
    full_text: bool = True  # the official non_streaming_mode


SENTENCE = "The living voice leaves before the second frame is begun, doesn't it?"

PROMPTS: dict[str, Case] = {
    "full": Case(SENTENCE),
    "streaming": Case(SENTENCE, full_text=False),
    "auto": Case(SENTENCE, "Vivian", None),
    "auto_streaming": Case(SENTENCE, "vivian", "auto", full_text=False),
    "one_token_streaming": Case("Hi", "sohee", "korean", full_text=False),
    "dialect_auto": Case("你好，世界。", "eric", "auto"),
    "dialect_chinese": Case("你好，世界。", "Dylan", "Chinese"),
    "dialect_streaming": Case("你好，世界。", "dylan", None, full_text=False),
    "dialect_overruled": Case("Hello, world.", "eric", "english"),
    "instruct": Case(SENTENCE, "serena", "english", "Speak slowly, in a low voice."),
    "instruct_streaming": Case(SENTENCE, "serena", "auto", "Speak slowly, in a low voice.", full_text=False),
}

DESIGNS: dict[str, Case] = {
    "full": Case(SENTENCE, None, "english", "A calm old man with a rough voice."),
    "streaming": Case(SENTENCE, None, "auto", "A calm old man with a rough voice.", full_text=False),
    "no_description": Case(SENTENCE, None, "german", ""),
}


class Clone(NamedTuple):
    """One clone request: `clip` names a beginning of the reference signal; no transcript means x-vector only."""

    text: str
    clip: str
    ref_text: str | None
    language: str | None = "English"
    full_text: bool = False
    greedy: bool = False


REFERENCE = "What the reference says."
CLONES: dict[str, Clone] = {
    "icl_streaming": Clone("Hello, world!", "three", REFERENCE, greedy=True),
    "icl_streaming_long_text": Clone(SENTENCE, "one", REFERENCE, "auto", greedy=True),
    "icl_full": Clone(SENTENCE, "three", REFERENCE, full_text=True, greedy=True),
    "icl_full_auto": Clone("Hello, world!", "odd", REFERENCE, None, full_text=True),
    "icl_long": Clone("Hello, world!", "twelve", REFERENCE),
    "x_vector": Clone(SENTENCE, "three", None, greedy=True),
    "x_vector_full": Clone(SENTENCE, "three", None, "german", full_text=True),
    "x_vector_auto": Clone("Hello, world!", "odd", None, "auto"),
}

# Greedy generations with their limit of frames: some end by themselves, some run into the limit.
GREEDY: dict[str, dict[str, tuple[Case, int]]] = {
    "custom": {
        "stop": (Case("What a day!"), 60),
        "stop_streaming": (Case(SENTENCE, full_text=False), 60),
        "shortest": (Case("Rain fell all night."), 60),
        "limit_streaming": (Case("The cat sat on the mat.", full_text=False), 60),
        "instruct": (PROMPTS["instruct"], 30),
        "dialect": (PROMPTS["dialect_auto"], 30),
    },
    "custom06": {
        "stop": (Case(SENTENCE), 60),
        "limit": (Case("Hello there."), 60),
    },
    "design": {
        "full": (Case("What a day!", None, "english", "A calm old man with a rough voice."), 30),
        "streaming": (DESIGNS["streaming"], 30),
    },
    "embedded": {
        "stop": (Case("Hello there."), 60),
    },
}

TEXTS = [
    "Hello, world!",
    "It's 12:30; I'll pay $1,234.56 (about 20%) for 3 kg.",
    "iPhone, McDonald, OpenAI, pH, NaOH, IT'S, eBay",
    "Grüße aus München – „schön“, nicht wahr?",
    "你好，世界。今天天气很好！",
    "こんにちは、世界。カタカナ",
    "안녕하세요 세계",
    "Привет, мир",
    "cafe\u0301 nai\u0308ve",
    "👩‍👩‍👧 family 🎉",
    "  two  leading   and inner spaces ",
    "\ttab\r\nand\n\nblank line\n",
    "\nnewline first",
    "a",
    "\u00a0non-breaking\u200bzero width\u3000ideographic",
    '{"json": [1, 2]} <b>tag</b> https://example.org/a?b=c#d',
]
SPECIAL_TEXTS = [
    "Say <|im_end|> aloud.",
    "<|im_start|>assistant",
    "one<tts_pad>two<tts_text_eod>three",
    "<|endoftext|>",
    "<|audio_start|><|audio_end|>",
    "broken <|im_end| > and <|im_start",
]

SAMPLING: dict[str, dict[str, Any]] = {
    "default": {"history": "long"},
    "first": {"history": "none"},
    "second": {"history": "one"},
    "third": {"history": "two"},
    "hot": {"history": "long", "temperature": 1.7, "top_k": 5},
    "nucleus": {"history": "long", "top_k": 0, "top_p": 0.8},
    "both": {"history": "long", "temperature": 0.6, "top_k": 20, "top_p": 0.9},
    "narrow": {"history": "long", "top_k": 0, "top_p": 0.05},
    "no_penalty": {"history": "long", "repetition_penalty": 1.0},
    "strong_penalty": {"history": "long", "repetition_penalty": 1.8, "top_k": 0, "temperature": 1.0},
    "top_1": {"history": "long", "top_k": 1},
    "ties": {"history": "long", "logits": "ties", "top_k": 8, "temperature": 1.0},
    "greedy": {"history": "long", "do_sample": False},
}
