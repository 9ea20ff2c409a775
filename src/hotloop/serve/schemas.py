"""Requests and responses: OpenAI's, as far as a text model on one machine has use for them.

Types are strict: a string is not a number. A field that is not known is an error, as it is at
OpenAI, so that a misspelt one never passes in silence. Fields that change nothing here (`user`,
`metadata`, …) are taken, and said so. A null means what leaving the field out means, since many
clients write down all that they know.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hotloop.serve.nullable import OR_NULL

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


Switch = Annotated[bool, OR_NULL]
Penalty = Annotated[float, Field(ge=-2, le=2), OR_NULL]
Token = Annotated[int, Field(ge=0, lt=2**31)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class StreamOptions(Request):
    include_usage: Switch = False
    include_obfuscation: bool | None = Field(None, description="Has no effect.")


class Sampled(Request):
    """What all requests for text share."""

    model: str | None = Field(None, description="The model's name; the only one if left out.")
    max_tokens: int | None = Field(None, ge=0)
    temperature: Annotated[float, Field(ge=0, le=100), OR_NULL] = Field(
        1.0, description="0 takes the likeliest token."
    )
    top_p: Annotated[float, Field(gt=0, le=1), OR_NULL] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31), OR_NULL] = Field(
        0, description="Keep the k likeliest; 0: all."
    )
    min_p: Annotated[float, Field(ge=0, le=1), OR_NULL] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100), OR_NULL] = Field(
        1.0, description="1: off."
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="By token id; -100 forbids a token."
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: Switch = Field(
        False, description="Go on where the model would end, up to max_tokens: for load tests."
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), OR_NULL] = 1
    stream: Switch = False
    stream_options: StreamOptions | None = None
    grammar: str | None = Field(None, description="A Lark grammar that the output follows.")
    user: str | None = Field(None, description="Has no effect.")

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionRequest(Sampled):
    prompt: str | list[str] | list[Token] | list[list[Token]] = Field(
        description="A text, tokens, or several of either."
    )
    echo: Switch = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: int | None = Field(None, ge=1, description="Must be n, or left out.")
    suffix: str | None = Field(
        None, description="What comes after, for models that are made to fill in."
    )


class TextPart(Request):
    type: Literal["text"]
    text: str


class FunctionCall(Request):
    name: str
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(Request):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Request):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = Field(None, description="Has no effect.")
    # What OpenAI's client writes of an answer that is sent back as a message.
    annotations: list[Any] | None = Field(None, description="Has no effect.")
    audio: None = None
    function_call: None = None

    @property
    def text(self) -> str | None:
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Function(Request):
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Request):
    type: Literal["function"]
    function: Function


class NamedFunction(Request):
    name: str


class NamedTool(Request):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Request):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(Request):
    type: Literal["text"]


class JsonObjectFormat(Request):
    type: Literal["json_object"]


class JsonSchemaFormat(Request):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class ChatRequest(Sampled):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: Switch = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further names for the chat template, such as enable_thinking."
    )
    reasoning_effort: str | None = Field(
        None, description="Given to the chat template, which may have no use for it."
    )
    modalities: list[Literal["text"]] | None = Field(None, description="Text is all there is.")
    metadata: dict[str, str] | None = Field(None, description="Has no effect.")
    prediction: dict[str, Any] | None = Field(None, description="Has no effect.")
    prompt_cache_key: str | None = Field(None, description="Has no effect.")
    prompt_cache_retention: str | None = Field(None, description="Has no effect.")
    safety_identifier: str | None = Field(None, description="Has no effect.")
    service_tier: str | None = Field(None, description="Has no effect.")
    store: bool | None = Field(None, description="Has no effect.")
    verbosity: str | None = Field(None, description="Has no effect.")


class EmbeddingsRequest(Request):
    model: str | None = None
    input: str | list[str] | list[Token] | list[list[Token]] = Field(
        description="A text, tokens, or several of either."
    )
    encoding_format: Annotated[Literal["float", "base64"], OR_NULL] = Field(
        "float", description="base64: of little-endian float32."
    )
    dimensions: int | None = Field(None, ge=1, description="The model's, or left out.")
    user: str | None = Field(None, description="Has no effect.")


class TokenizeRequest(Request):
    model: str | None = None
    prompt: str
    add_special_tokens: Switch = Field(True, description="Begin with BOS, where the model does.")


class DetokenizeRequest(Request):
    model: str | None = None
    tokens: list[Token]


# responses


class TokenizeResponse(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeResponse(BaseModel):
    prompt: str


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hotloop"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
