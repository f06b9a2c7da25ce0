"""Bodies that may be JSON or multipart/form-data: the same fields as text, and a recording as a file."""

from io import BytesIO
from typing import Any, TypeVar

import msgspec
from quart import Request, request
from quart.formparser import FormDataParser

from ..bus.layout import Api
from .auth import check_origin
from .schema import convert, read_json

STRUCTURED = ("speaker_embedding", "voice")
"""Fields that may hold JSON where the body is a form."""

T = TypeVar("T", bound=msgspec.Struct)


class _InMemory(FormDataParser):
    """No temporary files, which outlive a form that is cut off."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, stream_factory=_memory)


def _memory(*_: object) -> BytesIO:
    return BytesIO()


class FormRequest(Request):
    form_data_parser_class = _InMemory


async def read(kind: type[T], settings: Api, *files: str) -> tuple[T, bytes | None]:
    """The body of the current request, and the first file in it of these names. What the client calls the file
    on its disk is of no interest.

    :raises RequestError: as for `schema.read`; 403 for forms of foreign pages, which browsers send unasked.
    """
    if request.mimetype.lower() != "multipart/form-data":
        return convert(await read_json(), kind), None
    check_origin(request.headers.get("Origin"), request.host, settings)
    await request.get_data()  # all of it: Quart has no limit for what a parser takes while it comes
    fields, sent = await request.form, await request.files
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    given = {name: _value(name, text) for name, text in fields.items() if name in known and text}
    file = next((sent[name] for name in files if name in sent), None)
    return convert(given, kind, strict=False), None if file is None else file.read()


def _value(name: str, text: str) -> Any:
    if name in STRUCTURED and text[0] in '[{"':
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text
