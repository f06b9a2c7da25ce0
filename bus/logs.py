"""Log lines as JSON, one object a line."""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    def __init__(self, more: Callable[[], dict[str, str]]) -> None:
        """:param more: what else belongs into the line that is being written."""
        super().__init__()
        self._more = more

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._more(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def setup(more: Callable[[], dict[str, str]]) -> None:
    """Send everything that is logged to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(more))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def in_use() -> bool:
    """Whether this process writes such lines."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)
