"""What makes the results of a run doubtful, or the run slow, although no trial has an error, in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from evaljournal.replay.state.answers import ADVICE, MAX_TOKENS
from evaljournal.replay.state.definition import has_one_model, lacks_max_tokens, load_definition, variant_parameters
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import plural, printable

_MAX_NAMED: Final = 3
"""Models, and pairs of variants, that are named."""
_MANY_RATE_LIMITS: Final = 0.1
"""Share of rate-limited attempts from which the warning says what to change."""
_EFFECTIVE: Final = frozenset(
    {"model", "prompt", "system", "messages", "temperature", "top_p", "top_k", "effort", "reasoning_effort"}
)
"""Parameters that change the text of a model's answer; others, such as a seed or a token limit, may have no effect."""


def warnings_of(state: RunState) -> list[str]:
    warnings = _empty_outputs, _mixed_models, _same_variants, _short_prompts, _failed_teardowns, _missing_max_tokens
    return [text for warning in warnings for text in warning(state)]


def _mixed_models(state: RunState) -> Iterator[str]:
    """Yield the variants that several models served, although the cases do not name them."""
    for variant, totals in (dict(state.variants) or {"": state.totals}).items():
        models = [f"{printable(model, 60)} ({count:,})" for model, count in totals.models.most_common() if count]
        if len(models) > 1 and state.started and has_one_model(load_definition(state.started.definition), variant):
            others = f" and {plural(len(models) - _MAX_NAMED, 'other')}" if len(models) > _MAX_NAMED else ""
            label = f"{printable(variant, 40)} was" if variant else "the run was"
            yield f"{label} served by several models: {', '.join(models[:_MAX_NAMED])}{others}"


def _empty_outputs(state: RunState) -> Iterator[str]:
    """Yield how many outputs are an empty text; if the token limit is the reason, what to change."""
    causes = state.totals.empty_outputs
    count, limited = causes.total(), causes[MAX_TOKENS]
    if count:
        outputs = plural(state.totals.outputs, "output")
        text = f"{count:,} of {outputs} {'is' if count == 1 else 'are'} empty"
        part = "" if limited == count else f" in {limited:,} of them"
        yield text if not limited else f"{text}: the token limit was reached before any text{part}; {ADVICE[MAX_TOKENS]}"


def _same_variants(state: RunState) -> Iterator[str]:
    """Yield the variants that gave the same outputs although a parameter that changes answers differs."""
    pairs = list(state.trials.output_sample.same_variants(state.variants.names))
    definition = load_definition(state.started.definition) if pairs and state.started else None
    lines = []
    for one, other, count in pairs:
        values, other_values = (_flat(variant_parameters(definition, variant)) for variant in (one, other))
        names = [name for name in {**values, **other_values} if values.get(name) != other_values.get(name)]
        if parameters := " and ".join(name for name in names if name in _EFFECTIVE):
            outputs = plural(count, "long output")
            variants = f"{printable(one, 40)} and {printable(other, 40)}"
            lines.append(f"{variants} gave the same {outputs}: the endpoint may ignore {parameters}")

    yield from lines[:_MAX_NAMED]
    if len(lines) > _MAX_NAMED:
        yield f"{plural(len(lines) - _MAX_NAMED, 'more pair')} of variants gave the same outputs"


def _flat(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a variant, including those in its `extra_body`."""
    extra_body = parameters.get("extra_body")
    return {**parameters, **(extra_body if isinstance(extra_body, Mapping) else {})}


def _short_prompts(state: RunState) -> Iterator[str]:
    if count := state.trials.warnings.short_prompts:
        subject = "prompt has" if count == 1 else "prompts have"
        yield f"{count:,} {subject} more words than input tokens: the server truncates them; raise its context length"


def _failed_teardowns(state: RunState) -> Iterator[str]:
    if count := state.trials.warnings.failed_teardowns:
        trial = printable(state.trials.warnings.last_failed_teardown, 60)
        yield f"{plural(count, 'teardown')} failed, the last one of trial {trial}; `evaljournal show {trial}` shows the error"


def _missing_max_tokens(state: RunState) -> Iterator[str]:
    """Yield what to change if many calls of a chat model were rate limited although its token limit is known."""
    count, started = state.trials.attempts.retries["rate_limited"], state.started
    if started is None or not count or count < state.totals.attempts * _MANY_RATE_LIMITS:
        return
    uses, definition = state.policy.known_limits.uses(state.t), load_definition(started.definition)
    has_token_limit = any(use.limit.source == "advertised" and "tokens" in use.limit.unit for use in uses)
    if has_token_limit and any(lacks_max_tokens(definition, variant) for variant in list(state.variants) or [""]):
        reason = "the provider may reserve more tokens for an answer than it has"
        remedy = "pass --max-tokens, so that calls wait for what is reserved"
        yield f"{count:,} of {plural(state.totals.attempts, 'attempt')} rate limited: {reason}; {remedy}"
