"""The runs and variants that `diff`, `gate` and `compare` compare."""

from replay import LoadedRun
from replay.comparison import Side, outputs
from replay.text import printable
from runner.cli._common import RunReference
from runner.cli._display import open_run
from runner.errors import UsageError


def open_side(reference: RunReference) -> tuple[LoadedRun, Side]:
    """Read the run that a reference names; return it, and its side of a comparison with digests of its outputs."""
    view = open_run(reference.path)
    check_variant(view, reference.variant)
    return view, Side(view.state, outputs(view.records()), reference.variant)


def check_variant(view: LoadedRun, variant: str | None) -> None:
    """Raise an error if a run has no such variant; None is the whole run."""
    variants = view.state.variants.names
    if variant is not None and variant not in variants:
        names = ", ".join(printable(name, 40) for name in variants)
        problem = f"no variant {variant!r}; its variants: {names}" if variants else "no variants"
        raise UsageError(f"{view.path} has {problem}")
