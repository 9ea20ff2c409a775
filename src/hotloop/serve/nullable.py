"""A field that may be null, which then means its default."""

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticUseDefault, core_schema


def _not_null(value: object) -> object:
    if value is None:
        raise PydanticUseDefault
    return value


class _OrNull:
    """Comes last in an `Annotated`, so that the bounds before it apply to numbers only."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(_not_null, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "null"}]}


OR_NULL = _OrNull()
