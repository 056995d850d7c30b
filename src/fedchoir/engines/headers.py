"""The headers of messages, as schemas: everything that arrives from another process is checked against one of them."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedchoir.compression.chain import parse
from fedchoir.core.federation_spec import FederationSpec
from fedchoir.core.metrics import METRICS, MetricName
from fedchoir.core.scores import Detail
from fedchoir.payload import LARGEST
from fedchoir.utils.errors import UsageError

MAX_ROUNDS = 10**6
MAX_CLIENTS = 10**4
T = TypeVar("T", bound=BaseModel)

Count = Annotated[int, Field(ge=0, le=10**9)]
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$")]
"""A name that another site sent: short, and without characters that control a terminal or the order of a line."""


class MessageError(ValueError):
    """A message is malformed, or asks for what its receiver does not do."""


class Header(BaseModel):
    """Numbers are numbers, texts are texts, and every field is known."""

    model_config = ConfigDict(extra="forbid", strict=True)


Percent = Annotated[float, Field(ge=0, le=100)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class ScoreHeader(Header):
    """The scores on one test set: each metric within its bounds, or None where it is not defined."""

    accuracy: Percent
    metrics: dict[MetricName, float | None] = {}
    intervals: dict[MetricName, Interval | None] = {}

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        values = list(self.metrics.items())
        values += [(name, value) for name, interval in self.intervals.items() for value in interval or ()]
        for name, value in values:
            if value is not None and not 0 <= value <= METRICS[name].largest:
                raise ValueError(f"{name} is not between 0 and {METRICS[name].largest:g}")
        return self


class ValidationHeader(Header):
    """The headline metric on the validation share, and the best round so far."""

    score: Percent | None
    best_round: Annotated[int, Field(ge=0, lt=MAX_ROUNDS)] | None


class EvaluationHeader(Header):
    """The scores on each test set."""

    tests: list[ScoreHeader] = Field(min_length=1, max_length=1000)
    validation: ValidationHeader | None


class ReportHeader(Header):
    """Losses of one round, and the scores if it was evaluated."""

    report: dict[Name, Annotated[float, Field(ge=-LARGEST, le=LARGEST)]] = Field(max_length=64)
    evaluation: EvaluationHeader | None


class ReplyHeader(Header):
    """A client's reply."""

    payloads: list[int] = Field(max_length=100_000)
    deferred: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], ReportHeader] = Field(max_length=1000)
    seconds: dict[Name, Annotated[float, Field(ge=0, le=1e9)]] = Field(max_length=16)
    keys: dict[str, Any] = {}


class ActionHeader(Header):
    """A step or an exchange. ``received`` has the numbers of payloads, as one, by client, or in a list of either."""

    kind: Literal["step", "exchange"]
    name: Name
    batches: list[Annotated[list[Count], Field(min_length=5, max_length=5)]] = Field(max_length=100_000)
    received: Any = None
    dims: dict[Name, Count] = Field({}, max_length=100)
    round: Count = 0


class WorkHeader(BaseModel):
    """One thing for a client to do: an action (see `ActionHeader`), or an evaluation."""

    model_config = ConfigDict(strict=True)

    round: Annotated[int, Field(ge=0, lt=MAX_ROUNDS)]
    name: Name | None = None
    detail: Detail = "accuracy"


class InfoHeader(Header):
    """A question about a site before a run: does it fit this method, with these settings and this public set?"""

    method: Name
    settings: dict[Name, Any] = Field(max_length=1000)
    public: dict[Name, Any] | None


class PlanHeader(InfoHeader):
    """What a run is about."""

    task: dict[str, Any]


class KeysHeader(BaseModel):
    """A message about the keys of secure aggregation, which a client answers without any work."""

    model_config = ConfigDict(strict=True)

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    key_request: dict[str, Any]


class RequestHeader(BaseModel):
    """A message with work for a client."""

    model_config = ConfigDict(strict=True)

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    serial: Count
    base: Count
    keep: list[Count] = Field(max_length=16)
    plan: PlanHeader
    work: list[WorkHeader] = Field(min_length=1, max_length=10_000)
    masking: dict[str, Any] | None = None


_SPEC = TypeAdapter(FederationSpec)


def check_request(header: dict[str, Any]) -> None:
    """Raise `MessageError` unless a message from the server has the form of one."""
    validated(KeysHeader if "key_request" in header else RequestHeader, header, "the request")


def unpack_spec(packed: Any) -> FederationSpec:
    """The federation that a message describes."""
    try:
        spec = _SPEC.validate_python(packed)
    except ValidationError as error:
        raise MessageError(f"the description of the federation is malformed: {first_problem(error)}") from None
    for name, value, most in (
        ("rounds", spec.rounds, MAX_ROUNDS), ("clients", len(spec.clients), MAX_CLIENTS),
        ("classes", len(spec.classes), 10**6), ("public_size", spec.public_size, 10**9), ("seed", spec.seed, 2**63),
    ):  # fmt: skip
        if not 0 <= value <= most:
            raise MessageError(f"the description of the federation is malformed: {name} is {value}")
    try:
        parse(spec.compress)
    except UsageError:
        raise MessageError("the description of the federation is malformed: compress is not a chain") from None
    return spec


def validated(model: type[T], header: Any, what: str) -> T:
    """The header as its schema reads it. Raises `MessageError`, without quoting what another site sent."""
    try:
        return model.model_validate(header)
    except ValidationError as error:
        raise MessageError(f"{what} is malformed: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """What is wrong with a message, without quoting what another site sent."""
    problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part)[:64] for part in problem["loc"] if not isinstance(part, str) or part.isidentifier())
    return f"{where}: {problem['msg']}"
