"""Bodies that may be JSON or multipart/form-data: the same fields as text, and a recording as a file."""

from typing import Any, TypeVar

import msgspec
from quart import request
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder

from ..bus.errors import RequestError
from ..bus.layout import Api
from .auth import check_origin
from .schema import convert, read_json

STRUCTURED = ("speaker_embedding", "voice")
"""Fields that may hold JSON where the body is a form."""

MAX_PARTS = 1000

T = TypeVar("T", bound=msgspec.Struct)


async def read(kind: type[T], settings: Api, *files: str) -> tuple[T, bytes | None]:
    """The body of the current request, and the first file in it of these names. What the client calls the file
    on its disk is of no interest.

    :raises RequestError: as for `schema.read`; 403 for forms of foreign pages, which browsers send unasked.
    """
    if request.mimetype.lower() != "multipart/form-data":
        return convert(await read_json(), kind), None
    check_origin(request.headers.get("Origin"), request.host, settings)
    data = await request.get_data(cache=False)
    assert isinstance(data, bytes)
    fields, sent = _parts(data, request.mimetype_params.get("boundary", ""))
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    given = {name: _value(name, text) for name, text in fields.items() if name in known and text}
    file = next((sent[name] for name in files if name in sent), None)
    return convert(given, kind, strict=False), file


def _parts(data: bytes, boundary: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """The first of the texts and of the files of each name. Raises RequestError."""
    texts, files = dict[str, str](), dict[str, bytes]()
    kept: dict[str, Any] = texts
    name, held = "", b""
    try:
        decoder = MultipartDecoder(boundary.encode("ascii"), max_parts=MAX_PARTS)
        decoder.receive_data(data)
        decoder.receive_data(None)
        while not isinstance(event := decoder.next_event(), Epilogue):
            if isinstance(event, Field | File):
                name, kept, held = event.name, files if isinstance(event, File) else texts, b""
            elif isinstance(event, Data):
                held += event.data
                if not event.more_data:
                    kept.setdefault(name, held if kept is files else _text(name, held))
    except ValueError:
        text = (
            "The form cannot be read: its parts must lie between the `boundary` that its content type names."
        )
        raise RequestError(text, code="invalid_form") from None
    return texts, files


def _text(name: str, data: bytes) -> str:
    """Raises RequestError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"`{name}` is not UTF-8.", name) from None


def _value(name: str, text: str) -> Any:
    if name in STRUCTURED and text[0] in '[{"':
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text
