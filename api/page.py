"""The web page at `/`: files of the package, no build step, nothing from elsewhere."""

from importlib import resources

from quart import Blueprint, Response, abort

from .operations import Operation

OPERATIONS = (
    Operation(method="get", path="/", summary="The web page.", answers={"text/html": {"type": "string"}}),
    Operation(
        method="get",
        path="/web/{name}",
        summary="A file of the web page.",
        answers={"text/javascript": {"type": "string"}, "text/css": {"type": "string"}},
        errors=(404,),
    ),
)

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}

# Nothing is loaded from elsewhere, and no other page may frame it.
POLICY = "default-src 'self'; media-src 'self' blob:; img-src 'self' data:; frame-ancestors 'none'"


def blueprint() -> Blueprint:
    routes = Blueprint("page", __name__)
    folder = resources.files(__package__ or "") / "web"
    files = {
        item.name: (item.read_bytes(), TYPES[suffix])
        for item in folder.iterdir()
        if (suffix := "." + item.name.rpartition(".")[2]) in TYPES
    }

    def served(name: str) -> Response:
        data, kind = files[name]
        answer = Response(data, content_type=f"{kind}; charset=utf-8")
        answer.headers["Content-Security-Policy"] = POLICY
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    @routes.get("/")
    async def index() -> Response:
        return served("index.html")

    @routes.get("/docs")
    async def docs() -> Response:
        return served("docs.html")

    @routes.get("/web/<name>")
    async def part(name: str) -> Response:
        if name not in files or name.endswith(".html"):
            abort(404)
        return served(name)

    _ = index, docs, part
    return routes
