"""Errors as OpenAI's API has them: a status, and a body that names the field that is wrong."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hotloop.runtime.engine import ClosedError, QueueFullError
from hotloop.runtime.sequence import ConstraintError
from hotloop.util.errors import ContextError, HotloopError, TemplateError, UsageError

#: What a client that is told to wait should wait. Any number is a guess: a stream may end at once.
RETRY_AFTER_SECONDS = 1

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ErrorBody(BaseModel):
    """`param` is the path of the wrong field in the request, `code` a name that programs test."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorBody


class ApiError(HotloopError):
    """An answer that is not the one that was hoped for."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON of `ErrorResponse`."""
        type = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": str(self), "type": type, "param": self.param, "code": self.code}
        return {"error": error}


def as_api_error(error: HotloopError, param: str | None = None) -> ApiError:
    """Whose fault an error of the layers below is, and what status says so."""
    text = str(error)
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return ApiError(text, 429, code="queue_full")
        case ClosedError():
            return ApiError(text, 503, code="unavailable")
        case ContextError():
            return ApiError(text, 400, param, "context_length_exceeded")
        case UsageError() | TemplateError() | ConstraintError():
            return ApiError(text, 400, param)
        case _:
            return ApiError(text, 500)


def respond(error: ApiError) -> JSONResponse:
    headers = {}
    if error.status == 429:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers)


async def on_hotloop_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HotloopError)
    return respond(as_api_error(error))


async def on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    """The field that is wrong, by its path: `messages.0.role`.

    Where a field may be of several types, each of them complains: the one that got farthest into
    the value says most, and the type itself least.
    """
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):
        said = request.headers.get("content-type", "nothing")
        text = (
            f"the body must be JSON and say so: Content-Type is {said:.80}, not application/json."
        )
        return respond(ApiError(text))
    found = [(_path(one, error.body), one) for one in error.errors()]
    path, first = max(found, key=lambda one: (len(one[0]), not one[1]["type"].endswith("_type")))
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        return respond(ApiError(f"the body is not JSON: {reason}."))
    param = ".".join(path) or None
    return respond(ApiError(f"{param or 'the body'}: {first['msg']}.", param=param))


def _path(error: Mapping[str, Any], body: Any) -> list[str]:
    """Where in `body` it is: the parts of the location that the body has, not our types' names."""
    path: list[str] = []
    parts = error["loc"][1:]
    for part in parts:
        inside = isinstance(body, dict | list)
        if inside and (part in body if isinstance(body, dict) else isinstance(part, int)):
            path.append(str(part))
            body = body[part]
    return [*path, str(parts[-1])] if error["type"] == "missing" and parts else path


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """What the router says: no such path, no such method."""
    assert isinstance(error, HTTPException)
    response = respond(
        ApiError(
            f"{request.method} {request.url.path}: {error.detail.rstrip('.')}.", error.status_code
        )
    )
    response.headers.update(error.headers or {})
    return response


async def on_bug(_: Request, error: Exception) -> JSONResponse:
    return respond(ApiError(f"this is a bug in hotloop: {type(error).__name__}.", 500))
