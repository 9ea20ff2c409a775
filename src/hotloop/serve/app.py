"""The application: which paths there are, and what stands before them."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from hotloop import __version__
from hotloop.serve import errors, schemas
from hotloop.serve.background import in_background
from hotloop.serve.chat import chat
from hotloop.serve.completions import complete
from hotloop.serve.embeddings import embed
from hotloop.serve.errors import ApiError, ErrorResponse
from hotloop.serve.grammar import Grammars
from hotloop.serve.guards import BodyGuard, HostGuard, KeyGuard, Observer
from hotloop.serve.served import Served
from hotloop.util.errors import HotloopError

#: What one event of a stream is; its data is the JSON of a chunk, or `[DONE]`.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}


@dataclass(frozen=True)
class Access:
    """Who may ask, and how much.

    keys      API keys, any of which opens the server; none: it is open
    origins   web pages that may ask from a browser, besides our own ("*": all)
    hosts     names by which the server may be called ("*": any). A server that only this machine
              reaches has to be called by this machine's names, so that no web page can reach it by
              a name of its own that leads here
    body      bytes of a request's body at most
    """

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("*",)
    body: int = 4 << 20


def make_app(served: Served, access: Access) -> FastAPI:
    """The ASGI application for `served`, whose engine has been started."""
    app = FastAPI(
        title="hotloop",
        version=__version__,
        summary="OpenAI's API for one model.",
        docs_url=None,  # their pages ask other servers for scripts
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.add_exception_handler(HotloopError, errors.on_hotloop_error)
    app.add_exception_handler(RequestValidationError, errors.on_invalid_request)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_exception_handler(Exception, errors.on_bug)
    _add_text(app, served)
    _add_models(app, served)
    _add_tokens(app, served)
    _add_operations(app, served)
    _add_pages(app)
    paths = frozenset(app.openapi()["paths"])
    # The last that is added is the first that sees a request.
    app.add_middleware(BodyGuard, limit=access.body)
    app.add_middleware(KeyGuard, keys=access.keys)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(HostGuard, hosts=access.hosts)
    app.add_middleware(Observer, metrics=served.metrics, paths=paths)
    return app


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse} for status in statuses}


def _add_text(app: FastAPI, served: Served) -> None:
    grammars = Grammars(served.tokenizer, served.vocab)
    failures = _failures(400, 401, 404, 413, 422, 429, 500, 503)

    @app.post(
        "/v1/chat/completions",
        response_model=schemas.ChatResponse,
        responses=failures | {200: {"content": _EVENTS}},
    )
    async def chat_completions(http: Request, request: schemas.ChatRequest) -> Response:
        return await chat(served, grammars, http, request)

    @app.post(
        "/v1/completions",
        response_model=schemas.CompletionResponse,
        responses=failures | {200: {"content": _EVENTS}},
    )
    async def completions(http: Request, request: schemas.CompletionRequest) -> Response:
        return await complete(served, grammars, http, request)

    @app.post("/v1/embeddings", response_model=schemas.EmbeddingsResponse, responses=failures)
    async def embeddings(http: Request, request: schemas.EmbeddingsRequest) -> Response:
        return await embed(served, http, request)


def _add_models(app: FastAPI, served: Served) -> None:
    card = schemas.ModelCard(id=served.name, created=served.created, max_model_len=served.context)

    @app.get("/v1/models", responses=_failures(401))
    async def models() -> schemas.ModelList:
        return schemas.ModelList(data=[card])

    @app.get("/v1/models/{model:path}", responses=_failures(401, 404))
    async def model(model: str) -> schemas.ModelCard:
        served.check_name(model)
        return card


def _add_tokens(app: FastAPI, served: Served) -> None:
    @app.post("/tokenize", responses=_failures(400, 401, 404, 413))
    async def tokenize(request: schemas.TokenizeRequest) -> schemas.TokenizeResponse:
        served.check_name(request.model)
        encode = served.encode_prompt if request.add_special_tokens else served.encode
        tokens = await in_background(encode, request.prompt, "prompt")
        return schemas.TokenizeResponse(
            tokens=tokens, count=len(tokens), max_model_len=served.context
        )

    @app.post("/detokenize", responses=_failures(400, 401, 404, 413))
    async def detokenize(request: schemas.DetokenizeRequest) -> schemas.DetokenizeResponse:
        served.check_name(request.model)
        served.check_tokens(request.tokens, "tokens")
        return schemas.DetokenizeResponse(prompt=served.tokenizer.decode(request.tokens))


def _add_operations(app: FastAPI, served: Served) -> None:
    @app.get("/health", responses=_failures(503))
    async def health() -> dict[str, str]:
        if served.engine.failure:
            raise ApiError(served.engine.failure, 503, code="unavailable")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses=_failures(401))
    async def metrics() -> Response:
        return Response(served.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status", responses=_failures(401))
    async def status() -> dict[str, Any]:
        return served.status()


def _add_pages(app: FastAPI) -> None:
    """The web page, whose three files are part of this package."""
    for path, name, media_type in (
        ("/", "index.html", "text/html"),
        ("/static/app.js", "app.js", "text/javascript"),
        ("/static/style.css", "style.css", "text/css"),
    ):
        content = (files("hotloop.serve") / "web" / name).read_bytes()
        headers = {
            "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }

        async def page(
            content: bytes = content, media_type: str = media_type, headers: Any = headers
        ) -> Response:
            return Response(content, media_type=media_type, headers=headers)

        app.add_api_route(path, page, include_in_schema=False)
