"""The chat page: files of this package, which load nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What the page may do. No script can turn text into HTML: browsers refuse it."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Each file of the page with its type, read once."""
    every = (files("lbrx.serve") / "page").iterdir()
    found = [(each, TYPES.get("." + each.name.rpartition(".")[2])) for each in every]
    return {each.name: (each.read_bytes(), kind) for each, kind in found if kind is not None}


async def _page(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in _files():
        raise HTTPException(404, "Not Found")
    content, kind = _files()[name]
    return Response(content, media_type=kind, headers=HEADERS)


ROUTES = [Route("/", _page), Route("/page/{name}", _page)]
