"""The model call of an attempt, as far as it is recorded: model, provider, messages and parameters.

The request of the attempt has precedence over the definition of the task. Both are untrusted: any field may have any type.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from evaljournal.replay.provider.messages import Message, messages_of
from evaljournal.replay.provider.reports import fields_of, text_field
from evaljournal.replay.state.definition import load_definition
from evaljournal.replay.state.usage import is_amount

_PROVIDERS: Final = {
    "openai.com": "openai",
    "anthropic.com": "anthropic",
    "azure.com": "azure.ai.openai",
    "amazonaws.com": "aws.bedrock",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "mistral.ai": "mistral_ai",
    "cohere.com": "cohere",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}
"""Host name suffix → name of the provider in OpenTelemetry's conventions."""
_DEFAULT_PROVIDER: Final = "openai"
"""The provider of any other host: its API is assumed to be OpenAI-compatible, and the conventions have no name for the host."""


@attrs.frozen
class ModelCall:
    model: str = ""
    """Requested model; empty if it is unknown, or if the task is not a model."""
    provider: str = ""
    """Name in OpenTelemetry's conventions; empty without a model."""
    host: str = ""
    messages: Sequence[Message] = ()
    """Empty if they are not recorded."""
    parameters: Mapping[str, float] = attrs.field(factory=dict[str, float])
    """Numbers among the other fields of the request; `max_completion_tokens` is `max_tokens` here."""


class TaskModels:
    """The models that the definition of a run names: one for all trials, or one for each variant."""

    def __init__(self, definition: Any) -> None:
        self._definition = fields_of(load_definition(definition))
        self._by_variant: dict[str, TaskModel] = {}

    def for_variant(self, variant: str) -> "TaskModel":
        """Return the model of a variant's task, or that of the evaluation; if it has none, that among the parameters."""
        if variant not in self._by_variant:
            fields = fields_of(fields_of(self._definition.get("variants")).get(variant))
            task = TaskModel.from_definition(fields_of(fields.get("task")) or fields_of(self._definition.get("task")))
            parameter = text_field(fields_of(fields.get("parameters")), "model")
            self._by_variant[variant] = task if task.model else attrs.evolve(task, model=parameter)
        return self._by_variant[variant]


@attrs.frozen
class TaskModel:
    model: str
    host: str

    @classmethod
    def from_definition(cls, task: Mapping[str, Any]) -> "TaskModel":
        model = text_field(task, "model") or text_field(fields_of(task.get("body")), "model")
        try:
            host = urlsplit(text_field(task, "address") or text_field(task, "base_url")).hostname or ""
        except ValueError:
            host = ""
        return cls("" if "{" in model else model, host)

    def call(self, request: Any) -> ModelCall:
        body = fields_of(request)
        body = fields_of(body.get("body")) or body
        model = text_field(body, "model") or self.model
        if not model:
            return ModelCall(host=self.host)
        numbers = {
            "max_tokens" if name == "max_completion_tokens" else name: value for name, value in body.items() if is_amount(value)
        }
        return ModelCall(model, _provider(self.host), self.host, messages_of(body), numbers)


def call_of_step(step_input: Any) -> ModelCall:
    """Return the model call of a step, as far as its request describes it; the address is not recorded."""
    call = TaskModel("", "").call(step_input)
    return attrs.evolve(call, provider="anthropic") if call.model.startswith("claude") else call


def _provider(host: str) -> str:
    names = (name for suffix, name in _PROVIDERS.items() if host == suffix or host.endswith(f".{suffix}"))
    return next(names, _DEFAULT_PROVIDER)
