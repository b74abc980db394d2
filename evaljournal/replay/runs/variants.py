"""RUN@VARIANT: one variant of a run, as commands and functions take it."""

from pathlib import Path

from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.text import printable


def split_variant(reference: str, *directories: Path) -> tuple[str, str | None]:
    """Return the run and the variant of RUN@VARIANT; None for a whole run.

    An existing path that contains an @ is a run, in the working directory or in one of `directories`.
    """
    run, separator, variant = reference.rpartition("@")
    is_run = not separator or any((directory / reference).exists() for directory in (Path(), *directories))
    return (reference, None) if is_run else (run, variant)


def variant_problem(run: LoadedRun, variant: str | None) -> str:
    """Return what is wrong if a run has no such variant; None is the whole run."""
    names = run.state.variants.names
    if variant is None or variant in names:
        return ""
    variants = ", ".join(printable(name, 40) for name in names)
    return f"{run.path} has {f'no variant {variant!r}; its variants: {variants}' if names else 'no variants'}"
