"""Variants of a task: named sets of parameters, checked against the task before anything starts."""

import functools
import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, cast

import attrs

from evaljournal.runner.calls import OpenableTask
from evaljournal.runner.data.fingerprint import canonical, definition_of, digest
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.secrets.masking import mask_definition

VariantOptions = Mapping[str, Mapping[str, Any]] | Mapping[str, Sequence[Any]]
"""Variant → its parameters; or parameter → its values, to run every combination."""

MAX_UNCONFIRMED: Final = 1_000
"""Maximum variants of a run without `--yes`."""
_MAX_VARIANTS: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_LENGTH: Final = 200
_MAX_VALUE_LENGTH: Final = 24
"""Maximum characters of one value in a derived name."""
_DIGITS: Final = 4
"""Digits of a digest that distinguish values with equal slugs."""


@attrs.frozen(eq=False)
class Variant:
    name: str
    parameters: Mapping[str, Any]
    task: Any = attrs.field(repr=False)
    """The task with these parameters: a function, or an object such as a chat model."""

    @property
    def fingerprint(self) -> str:
        """Digest of the parameters; for an object such as a chat model, of everything that affects its outputs."""
        fingerprint: object = getattr(self.task, "fingerprint", None)
        if isinstance(fingerprint, str):
            return fingerprint
        return digest(canonical(mask_definition(dict(self.parameters)), "the parameters"))

    @property
    def definition(self) -> dict[str, Any]:
        """The variant as a run records it; may contain secrets."""
        definition: dict[str, Any] = {"parameters": dict(self.parameters), "fingerprint": self.fingerprint}
        return {**definition, "task": definition_of(self.task)} if isinstance(self.task, OpenableTask) else definition


def variants_of(
    task: Callable[..., Any], options: VariantOptions | Mapping[str, Variant], evaluation: str
) -> dict[str, Variant]:
    """Return the variants of a task; raise a `UsageError` if the task lacks a parameter.

    A function gets the parameters as keyword arguments; for an object such as a chat model, they are the fields that differ.
    """
    values: Any = options
    if isinstance(values, dict) and values and all(isinstance(value, Variant) for value in values.values()):
        return values

    parameters_by_variant, target = _parameters_by_variant(options), cast("Any", task)
    is_function = not isinstance(task, OpenableTask)
    check, bind = (check_signature, functools.partial) if is_function else (_check_fields, attrs.evolve)
    for name, parameters in parameters_by_variant.items():
        check(target, parameters, f"variant {name!r} of {evaluation!r}")
        canonical(parameters, f"variant {name!r} of {evaluation!r}: parameters")
    return variants_by_name(
        Variant(name, parameters, bind(target, **parameters)) for name, parameters in parameters_by_variant.items()
    )


def variants_by_name(variants: Iterable[Variant]) -> dict[str, Variant]:
    """Return variants by name; raise a `UsageError` if a name is invalid or, ignoring capitalization, occurs twice."""
    by_lower_name: dict[str, Variant] = {}
    for variant in variants:
        check_variant_name(variant.name)
        first_variant = by_lower_name.setdefault(variant.name.lower(), variant)
        if first_variant is not variant:
            problem = "two variants have this name"
            if first_variant.name != variant.name:
                problem = f"{first_variant.name!r} differs only in capitalization"
            raise UsageError(f"variant {variant.name!r}: {problem}; rename one of them")
    return {variant.name: variant for variant in by_lower_name.values()}


def check_variant_name(name: object) -> None:
    """Raise a `UsageError` if a variant cannot have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.strip("."):
        raise UsageError(f"variant {name!r}: a name consists of letters, digits, '.', '_' and '-'")
    if len(name) > _MAX_NAME_LENGTH:
        raise UsageError(
            f"variant {name[:40]!r}…: the name has {len(name):,} characters; at most {_MAX_NAME_LENGTH} are allowed"
        )


def selected_variants(variants: Mapping[str, Variant], names: Sequence[str], evaluation: str) -> dict[str, Variant]:
    """Return the variants with these names, in the order of the definition; all of them if there are no names."""
    for name in names:
        if name not in variants:
            hint = suggest(name, variants) or (f"; it has {', '.join(map(repr, variants))}" if variants else "")
            problem = f"{evaluation!r} has no variant {name!r}{hint}" if variants else f"{evaluation!r} has no variants"
            raise UsageError(problem, setting="only_variants", value=name)
    return {name: variant for name, variant in variants.items() if not names or name in names}


def _parameters_by_variant(options: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(options, Mapping):
        raise UsageError(f"variants must be a mapping, not {options!r}")
    if not options:
        raise UsageError("variants is empty; add a variant, or omit it")

    values: Mapping[Any, Any] = options
    if all(isinstance(value, Mapping) for value in values.values()):
        return {name: dict(parameters) for name, parameters in values.items()}

    for name, value in values.items():
        if not isinstance(value, list | tuple):
            raise UsageError(
                f"variants[{name!r}] is {value!r}; write {{'name': {{'parameter': value}}}} for named variants, or "
                f"{{'parameter': [values]}} to run every combination"
            )
        if not value:
            raise UsageError(f"variants[{name!r}] has no values; remove it, or add some")
    return product(values)


def product(
    values: Mapping[str, Sequence[Any]], labels: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Mapping[str, Any]]:
    """Return all combinations of the values of some parameters, by name.

    A name consists of the values that differ, shortened; reordering the values of a parameter does not change the names.
    `labels` are used for the names instead of the values.
    """
    count = math.prod(map(len, values.values()))
    if count > _MAX_VARIANTS:
        raise UsageError(f"the product has {count:,} variants; at most {_MAX_VARIANTS:,} are possible")

    slugs = [_slugs(name, (labels or {}).get(name, options)) if len(options) > 1 else [""] for name, options in values.items()]
    names = ["-".join(filter(None, parts)) or "only" for parts in itertools.product(*slugs)]
    counts = Counter(map(str.lower, names))

    parameters_by_variant: dict[str, Mapping[str, Any]] = {}
    for short_name, combination in zip(names, itertools.product(*values.values()), strict=True):
        parameters = dict(zip(values, combination, strict=True))
        is_unique = counts[short_name.lower()] == 1
        name = short_name if is_unique else f"{short_name}-{_digest(parameters)[: 2 * _DIGITS]}"
        if name in parameters_by_variant:
            raise UsageError(f"two variants are equal: {parameters!r}; remove one of the values")
        parameters_by_variant[name] = parameters
    return parameters_by_variant


def _slugs(parameter: str, values: Sequence[Any]) -> list[str]:
    """Return a slug for each value of one parameter; values with equal slugs get digits of their digests."""
    slugs = [_slug(parameter, value) for value in values]
    counts = Counter(map(str.lower, slugs))
    return [
        slug if counts[slug.lower()] == 1 else f"{slug}-{_digest(value)[:_DIGITS]}"
        for slug, value in zip(slugs, values, strict=True)
    ]


def _slug(parameter: str, value: Any) -> str:
    """Return a value as part of a name; numbers, booleans and None follow the name of their parameter."""
    text = value if isinstance(value, str) else ""
    if value is None or isinstance(value, bool | int | float):
        text = f"{parameter}-{value}".lower()
    text = _INVALID_CHARACTERS.sub("-", text)
    if len(text) > _MAX_VALUE_LENGTH:
        text = text[: _MAX_VALUE_LENGTH + 1].rpartition("-")[0] or text[:_MAX_VALUE_LENGTH]
    return text.strip("-.") or _INVALID_CHARACTERS.sub("-", f"{parameter}-{_digest(value)[:_DIGITS]}").strip("-.")


def _digest(value: Any) -> str:
    return digest(canonical(value, "variants"))


def _check_fields(task: Any, parameters: Mapping[Any, Any], label: str) -> None:
    task_type = type(task)
    fields = [field.name for field in attrs.fields(task_type) if field.init] if attrs.has(task_type) else []
    for name in parameters:
        if name not in fields:
            raise UsageError(f"{label}: {task_type.__name__} has no field {name!r}{suggest(str(name), fields, limit=1)}")


def check_signature(task: Any, parameters: Mapping[Any, Any], label: str) -> None:
    """Raise a `UsageError` if a function cannot be called with the case's input and these parameters."""
    try:
        signature = inspect.signature(task)
    except ValueError:
        return  # Some builtins have no signature.

    task_parameters = list(signature.parameters.values())
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in task_parameters)
    if task_parameters and task_parameters[0].kind is Parameter.POSITIONAL_OR_KEYWORD and task_parameters[0].name in parameters:
        problem = f"cannot set {task_parameters[0].name!r}, which gets the case's input"
        raise UsageError(f"{label}: {problem}; remove it from the variant")

    keyword_kinds = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [parameter.name for parameter in task_parameters[1:] if parameter.kind in keyword_kinds]
    for name in parameters:
        if not isinstance(name, str) or (name not in keywords and not takes_any):
            hint = suggest(str(name), keywords, limit=1)
            raise UsageError(f"{label}: the task has no parameter {name!r}{hint}; its signature is {signature}")

    try:
        signature.bind_partial(None, **parameters)  # A set-up, which is added later, may pass further parameters.
    except TypeError as exc:
        arguments = "the case's input and the parameters" if parameters else "one argument, the case's input"
        raise UsageError(f"{label} is called with {arguments}, but takes {signature}: {exc}") from exc
