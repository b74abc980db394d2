"""The errors of providers as data: one module of rules per provider. The first rule that matches counts."""

from typing import Final

from evaljournal.runner.retries.providers import anthropic, google, groq, openai, openrouter, together
from evaljournal.runner.retries.providers.rule import ErrorFields, Rule

_RULES: Final = (*openai.RULES, *anthropic.RULES, *google.RULES, *openrouter.RULES, *groq.RULES, *together.RULES)


def matching_rule(status: int | None, fields: ErrorFields) -> Rule | None:
    """Return the first rule about an error with this status and these fields, or None.

    A provider cannot be told from its address (proxies, gateways), so the rules of all are tried; each requires a status or a
    field that only its provider uses with this meaning.
    """
    return next((rule for rule in _RULES if rule.matches(status, fields)), None)
