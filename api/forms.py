"""Bodies that may be JSON or multipart/form-data: the same fields as text, and a recording as a file."""

from typing import Any, TypeVar

import msgspec
from quart import request

from ..bus.layout import Api
from .auth import check_origin
from .schema import convert, read_json

STRUCTURED = ("speaker_embedding", "voice")
"""Fields that may hold JSON where the body is a form."""

T = TypeVar("T")


async def read(kind: type[T], settings: Api, *files: str) -> tuple[T, bytes | None]:
    """The body of the current request, and the first file in it of these names. What the client calls the file
    on its disk is of no interest.

    :raises RequestError: as for `schema.read`; 403 for forms of foreign pages, which browsers send unasked.
    """
    if request.mimetype.lower() != "multipart/form-data":
        return convert(await read_json(), kind), None
    check_origin(request.headers.get("Origin"), request.host, settings)
    fields, sent = await request.form, await request.files
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    given = {name: _value(name, text) for name, text in fields.items() if name in known and text}
    file = next((sent[name] for name in files if name in sent), None)
    return convert(given, kind, strict=False), None if file is None else file.read()


def _value(name: str, text: str) -> Any:
    if name in STRUCTURED and text[0] in "[{":
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text
