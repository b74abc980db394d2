"""The usage of recorded calls under other prices: another table, another model, other cache hits, a batch.

Tokens stay as they were recorded. What is not recorded is not guessed: a call without tokens keeps its usage, and one of a
model without a price has none. Model and service tier are those that the reply reported, as when the run priced it, so the
prices of the run itself give its own cost, to the last digit.

`LiveEstimate` is what the recorded steps of a run from some step on would cost: the estimate of a counterfactual run. The steps
of a trial are those of the attempt that returned its output. Steps inside another one count like those of the task.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from evaljournal.journal import Blob, Record, events
from evaljournal.replay.provider.reports import Report, StreamReport
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.usage import JUDGE_USAGE, add, is_amount, noted_usage
from evaljournal.runner.calls.dialects import split_model
from evaljournal.runner.calls.prices import BATCH, Price, Tokens, price_of
from evaljournal.runner.calls.usage import one_hour_writes
from evaljournal.runner.errors import UsageError
from evaljournal.runner.steps.replies.recorded import RecordedReply
from evaljournal.runner.steps.replies.rewrite import DIALECTS, Rewrite
from evaljournal.runner.steps.replies.source import HOW_TO_RECORD

_ENDPOINTS = {endpoint.replace("/", "."): endpoint for endpoint in DIALECTS}
"""Name of a step → its endpoint."""


@attrs.define(eq=False)
class Repricing:
    """Prices the recorded calls of a run again, and adds them up in the order in which views do."""

    prices: Mapping[str, Price]
    models: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Model → the model whose prices apply; an empty name stands for all others."""
    cache_hit: float | None = None
    """Share of the input tokens that are read from a cache; None: as recorded."""
    batch: bool = False
    """Whether the calls of chat models and judges have the prices of a batch."""
    usage: Counter[str] = attrs.field(init=False, factory=Counter[str])
    """Sums of all usage, those of judges as `judge.…`."""
    counts: Counter[str] = attrs.field(init=False, factory=Counter[str])
    """`priced` calls, those whose recorded cost is `kept`, and `inner` ones, which cannot be sent in batches."""
    unpriced_models: dict[str, None] = attrs.field(init=False, factory=dict[str, None])
    uncached_models: dict[str, None] = attrs.field(init=False, factory=dict[str, None])
    """Models without a price of their own for cached tokens."""
    _batched: set[tuple[str, bool]] = attrs.field(init=False, factory=set[tuple[str, bool]])
    """Trials whose attempt in flight, or whose judge (True), uses a line of a batch."""

    def apply(self, record: Record) -> None:
        event = record.event
        match event:
            case events.AttemptStarted():
                self._mark(event.trial, event.batch, is_judge=False)
            case events.ScorerCallStarted():
                self._mark(event.trial, event.batch, is_judge=True)
            case events.StepCompleted():
                if event.usage is not None:
                    self.counts["inner"] += 1
                    add(self.usage, self.usage_of(event))
            case events.AttemptSucceeded() | events.AttemptFailed() | events.AttemptTimedOut():
                if event.usage is not None:
                    add(self.usage, self._of_reply(event.usage, getattr(event, "output", None), ""))
            case events.Noted():
                add(self.usage, noted_usage(event.name, self._of_note(event)))
            case _:
                pass

    def usage_of(self, step: events.StepCompleted | RecordedReply) -> Any:
        return self._of_reply(step.usage, step.output, model_of(step), is_inner=True)

    def _mark(self, trial: str, batch: int, *, is_judge: bool) -> None:
        (self._batched.add if batch else self._batched.discard)((trial, is_judge))

    def _of_note(self, event: events.Noted) -> Any:
        value = event.value
        if not isinstance(value, dict):
            return value
        if event.name == "usage":
            return self._price(value, _text(value.get("model")), "", 0)
        usage = value.get("usage")
        if event.name not in {ANSWER, JUDGE_USAGE} or not isinstance(usage, dict):
            return value
        is_batched = self.batch or (event.trial, event.name == JUDGE_USAGE) in self._batched
        tier = BATCH if is_batched else _text(value.get("service_tier"))
        return {**value, "usage": self._price(usage, _text(value.get("served_model") or value.get("model")), tier, 0)}

    def _of_reply(self, usage: Any, reply: Any, model: str, *, is_inner: bool = False) -> Any:
        """Price a call whose reply is recorded: an HTTP reply, a message, or the response of an SDK."""
        if not isinstance(usage, dict):
            return usage
        reply = reply.load() if isinstance(reply, Blob) else reply
        body = reply.get("body", reply) if isinstance(reply, dict) else None
        body = body.load() if isinstance(body, Blob) else body

        report = Report()
        if isinstance(body, str):
            report = StreamReport()
            report.feed(body.encode(errors="replace"))
            report.end()
        else:
            for part in body if isinstance(body, list) else [body]:
                report.add(part)

        tier = BATCH if self.batch and not is_inner else report.tier
        return self._price(usage, report.model or model, tier, one_hour_writes(report.usage or {}))

    def _price(self, usage: Mapping[str, Any], model: str, tier: str, writes_1h: int) -> Mapping[str, Any]:
        input_tokens, output_tokens = usage.get("input_tokens"), usage.get("output_tokens")
        new_model = self.models.get(model) or self.models.get(split_model(model)[1]) or self.models.get("", model)
        if not (is_amount(input_tokens) and is_amount(output_tokens)) or not new_model:
            self.counts["kept"] += "cost" in usage
            return usage

        self.counts["priced"] += 1
        tokens = {name: value for name, value in usage.items() if name not in {"cost", "unpriced_calls", "unpriced_model"}}
        price = price_of(split_model(new_model)[1], self.prices)
        cost = (
            None
            if price is None
            else price.cost(self._tokens(tokens, new_model, price, writes_1h, is_other=new_model != model), tier)
        )

        if cost is None:
            self.unpriced_models[new_model] = None
            return {**tokens, "unpriced_calls": 1, "unpriced_model": new_model}
        return {**tokens, "cost": cost}

    def _tokens(self, usage: Mapping[str, Any], model: str, price: Price, writes_1h: int, *, is_other: bool) -> Tokens:
        def count(name: str) -> int:
            value = usage.get(name)
            return max(0, int(value)) if is_amount(value) else 0

        tokens, cached, writes = count("input_tokens"), count("cached_tokens"), count("cache_write_tokens")
        if self.cache_hit is not None:
            cached = round(tokens * self.cache_hit)
            writes = min(writes, tokens - cached)
            if price.cached is None:
                self.uncached_models[model] = None

        if is_other and price.cache_write is None:
            writes = 0  # The other model charges for none: the tokens are input.
        writes_1h = min(writes_1h, writes)
        return Tokens(
            input=tokens,
            output=count("output_tokens"),
            cached=cached,
            cache_writes=writes - writes_1h,
            cache_writes_1h=writes_1h,
        )


def model_of(step: events.StepCompleted | events.StepFailed | RecordedReply) -> str:
    """Return the model that a step asked for: that of its request, or the end of its name."""
    return _text(step.input.get("model") if isinstance(step.input, dict) else None) or step.name.partition(" ")[2]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def parse_models(values: tuple[str, ...]) -> dict[str, str]:
    """Return model → the model whose prices apply, from `NEW` for all models or `OLD=NEW` for one."""
    models: dict[str, str] = {}
    for value in values:
        old, _, new = value.rpartition("=")
        if not new.strip() or (old.strip() in models):
            raise UsageError(f"--model-price {value}: expected MODEL, or OLD=NEW for the calls of one model, each once")
        models[old.strip()] = new.strip()
    return models


@attrs.define(eq=False)
class LiveEstimate:
    """What a run from some step on is expected to call."""

    rewrite: Rewrite
    trials: int = 0
    """Trials that have the step."""
    calls: int = 0
    """Their model calls from that step on."""
    usage: Counter[str] = attrs.field(factory=Counter[str])
    """As it is priced for the other model."""
    _endpoints: set[str] = attrs.field(factory=set[str])
    """Of these calls; empty for one that is no request over HTTP."""
    _longest: int = 0

    def add(self, steps: Collection[RecordedReply], repricing: Repricing) -> None:
        length = max((step.step for step in steps), default=0)
        self._longest = max(self._longest, length)
        self.trials += length >= self.rewrite.from_step
        for step in steps:
            if step.step >= self.rewrite.from_step and step.kind == "model":
                self.calls += 1
                self._endpoints.add(_ENDPOINTS.get(step.name.partition(" ")[0], ""))
                add(self.usage, repricing.usage_of(step))

    def check(self, path: object) -> None:
        """Raise a `UsageError` if no trial has the step, or the calls cannot be sent as the rewrite wants it."""
        rewrite = self.rewrite
        if not self._longest:
            raise UsageError(f"{path} has recorded no steps, so nothing can start from one", hint=HOW_TO_RECORD)
        if rewrite.from_step > self._longest:
            raise UsageError(
                f"--from-step {rewrite.from_step} is beyond the last step of {path}; its longest trial has {self._longest}"
            )

        if rewrite.model is None and rewrite.system is None:
            return
        if "" in self._endpoints or not self._endpoints:
            problem = "are no requests over HTTP, which could be changed" if self._endpoints else "are none"
            raise UsageError(f"the model calls of {path} from step {rewrite.from_step} on {problem}", hint=HOW_TO_RECORD)
        for endpoint in sorted(self._endpoints):
            rewrite.check(endpoint)
