"""Errors by who caused them.

VivavoceError
├── LayoutError      the layout file is wrong (who runs the server)
├── StartError       a stage could not start: no model, no memory (who runs the server)
└── RequestError     the request cannot be served as it is (the caller)
"""

from .messages import Failure


class VivavoceError(Exception):
    """Base of the errors that are told to a person in one sentence."""


class LayoutError(VivavoceError):
    """A layout is wrong; the text names file, key and what is allowed."""


class StartError(VivavoceError):
    """A process or one of its stages could not start."""


class RequestError(VivavoceError):
    """The request is refused. `param` names the field; `status` and `code` go into the error envelope."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.failure = Failure(status=status, code=code, message=message, param=param)


def innermost(error: BaseException) -> BaseException:
    """What task groups have wrapped, as long as it is one thing."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
