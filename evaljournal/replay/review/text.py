"""The review of a run as text and Markdown: corrected scores, and how well a scorer agrees with human labels."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from evaljournal.replay.render.phrases import (
    ci_text,
    difference_interval,
    mean_text,
    n_text,
    score_value_text,
    share_interval_text,
    signed_difference,
)
from evaljournal.replay.review.agreement import Coefficient
from evaljournal.replay.review.correction import MIN_LABELS, MIN_OF_CLASS, CorrectedScore, SampleUse
from evaljournal.replay.review.reviewed import Agreement, Bias, Rate
from evaljournal.replay.statistics import Estimate
from evaljournal.replay.text import columns, one_line, plural, printable

_NAME_CHARS: Final = 24
_NOTE_CHARS: Final = 80


def corrected_text(score: CorrectedScore) -> str:
    """Return a corrected score with its evidence: `corrected 71.5 % (95 % CI 65.0–78.0 %, 60 of 1,200 reviewed, sample 1)`."""
    unsampled = _unused_text(score.unsampled)
    if score.method == "none":
        reason = samples_text(score) or f"only {unsampled}; draw one with `evaljournal review RUN --sample {MIN_LABELS * 2}`"
        return f"not corrected: {reason}"
    details = [ci_text(share_interval_text(score.kind, score.low, score.high))]
    details += [f"{score.labels:,} of {score.trials:,} reviewed", samples_text(score)]
    title = "corrected" if score.method == "ppi" else "labels alone"
    text = f"{title} {mean_text(score.kind, score.mean)} ({', '.join(details)})"

    notes = []
    if score.method == "labels":
        minimum = f"{MIN_OF_CLASS} of each class" if score.kind == "pass" else f"{MIN_OF_CLASS} that differ from the score"
        needed = f"{MIN_LABELS} labels and {minimum}" if score.cases > 1 else "labels of 2 cases"
        notes.append(f"too few for a correction, which needs {needed}")
    return "; ".join([text, *notes, *([f"not used: {unsampled}"] if unsampled else ())])


def samples_text(score: CorrectedScore) -> str:
    """Return the samples of the labels: `uniform sample 1`, `uniform sample 1 and uniform sample 2 (40 of 50 labeled)`."""
    return " and ".join(_sample_text(sample) for sample in score.samples)


def _sample_text(sample: SampleUse) -> str:
    """Return a sample, and why labels of it do not count, such as `(77 of 100 labeled, 12 count: next is c7)`."""
    notes = [f"{sample.labeled:,} of {sample.drawn:,} labeled"] if sample.missing else []
    if sample.outputs > sample.population:
        notes = [f"drawn when {sample.population:,} of {sample.outputs:,} outputs existed: draw another sample"]
    elif sample.missing and sample.method != "uniform":
        notes.append(f"none counts before all are, next is {printable(sample.missing, _NAME_CHARS)}")
    elif sample.counted < sample.labeled:
        notes.append(f"{sample.counted:,} count: label them in order, next is {printable(sample.missing, _NAME_CHARS)}")
    return f"{printable(sample.method, 20)} sample {sample.id}" + (f" ({', '.join(notes)})" if notes else "")


def _unused_text(labels: int) -> str:
    return f"{plural(labels, 'label')} that {'counts' if labels == 1 else 'count'} for no random sample" if labels else ""


def corrected_lines(scores: Mapping[str, CorrectedScore]) -> Iterator[str]:
    """Yield a line for each corrected score: `judge 83.8 %, corrected 71.5 % (…)`."""
    for name, score in scores.items():
        yield f"{printable(name, _NAME_CHARS)} {mean_text(score.kind, score.judge)}, {corrected_text(score)}"


def difference_lines(differences: Mapping[str, Estimate], kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each corrected difference of two runs: `judge, corrected: +3.1 points (95 % CI -1.2 to 7.4)`."""
    for name, difference in differences.items():
        kind = kinds[name]
        interval = ci_text(difference_interval(kind, difference.low, difference.high))
        yield f"{printable(name, _NAME_CHARS)}, corrected: {signed_difference(kind, difference.mean)} ({interval})"


def coefficient_text(coefficient: Coefficient | None) -> str:
    """Return a coefficient of agreement: `0.82 (95 % CI 0.71 to 0.91)`."""
    if coefficient is None:
        return "undefined"
    low, high = coefficient.low, coefficient.high
    interval = "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    return f"{coefficient.value:.2f} ({ci_text(interval)})"


def rate_text(rate: Rate | None) -> str:
    """Return a rate: `91.2 % (95 % CI 84.0–95.4 %, n = 68)`."""
    if rate is None:
        return "undefined: no output has this label"
    interval = ci_text(share_interval_text("pass", rate.low, rate.high))
    return f"{mean_text('pass', rate.mean)} ({interval}, {n_text(rate.n)})"


def agreement_rows(agreement: Agreement) -> Iterator[tuple[str, str]]:
    has_scores = agreement.alpha is not None or bool(agreement.confusion)
    if agreement.kind != "number" and has_scores:
        yield "Gwet's AC1", coefficient_text(agreement.ac1)
        yield "Cohen's κ", coefficient_text(agreement.kappa)
    if has_scores:
        yield "Krippendorff's α", coefficient_text(agreement.alpha)
    if agreement.alpha_reviewers is not None or len(agreement.reviewers) > 1:
        yield "α of the reviewers alone", coefficient_text(agreement.alpha_reviewers)
    if agreement.kind == "pass" and has_scores:
        yield "true pass rate (TPR)", rate_text(agreement.true_pass_rate)
        yield "true fail rate (TNR)", rate_text(agreement.true_fail_rate)

    if agreement.consistency is not None:
        same, pairs = agreement.consistency.same, agreement.consistency.pairs
        yield (
            "consistency",
            f"{same:,} of {plural(pairs, 'pair')} of equal outputs have the same score ({100 * same / pairs:.1f} %)",
        )
    if (flips := agreement.position_flips) is not None:
        share = f"{100 * flips.flips / flips.pairs:.1f} %"
        yield (
            "position flips",
            f"{flips.flips:,} of {plural(flips.pairs, 'pair')} ({share}), {flips.to_first:,} to the first position",
        )

    kind = "pass" if agreement.kind == "pass" else "number"
    if agreement.length is not None:
        yield "error by length", _bias_text(agreement.length, kind, "on shorter outputs", "on longer outputs")
    if agreement.own_family is not None:
        yield "own model family", _bias_text(agreement.own_family, kind, "on other models", "on the judge's own model family")


def _bias_text(bias: Bias, kind: str, without: str, with_: str) -> str:
    errors = f"{signed_difference(kind, bias.error_without)} {without}, {signed_difference(kind, bias.error_with)} {with_}"
    interval = ci_text(difference_interval(kind, bias.low, bias.high))
    return f"{errors} (difference {signed_difference(kind, bias.difference)}, {interval}, {n_text(bias.n)})"


def basis_text(agreement: Agreement) -> str:
    """Return which labels are used: `60 outputs, labeled by ada (60) and grace (20); 12 saw the score`."""
    names = [f"{printable(name, _NAME_CHARS)} ({count:,})" for name, count in islice(agreement.reviewers.items(), 5)]
    names += [f"{len(agreement.reviewers) - 5:,} others"] if len(agreement.reviewers) > len(names) else []
    parts = [f"{plural(agreement.labels, 'output')} labeled by {' and '.join(names)}"]
    if agreement.unscored:
        parts.append(f"not used: {plural(agreement.unscored, 'output')} with a score that is no number")
    if agreement.unblinded:
        parts.append(f"{agreement.unblinded:,} with the score visible")
    if agreement.tied:
        parts.append(f"{agreement.tied:,} without a majority, used for α only")
    if not agreement.is_sampled:
        parts.append("not a random sample: the figures do not apply to other outputs")
    elif agreement.unsampled:
        parts.append(f"not used: {_unused_text(agreement.unsampled)}")
    return "; ".join(parts)


def confusion_table(agreement: Agreement) -> list[list[str]]:
    """Return the confusion table: a row for each score, a column for each label; empty for numbers."""
    counts = {(cell.judge, cell.label): cell.count for cell in agreement.confusion}
    if not counts:
        return []
    columns = sorted({label for _, label in counts}, key=_order)
    header = ["score", *(f"label {score_value_text(label)}" for label in columns)]
    rows = sorted({judge for judge, _ in counts}, key=_order)
    return [
        header,
        *([score_value_text(judge), *(f"{counts.get((judge, label), 0):,}" for label in columns)] for judge in rows),
    ]


def _order(value: object) -> tuple[bool, str]:
    return value is not True, str(value)


def agreement_lines(agreement: Agreement, *, limit: int | None) -> Iterator[str]:
    """Yield an agreement as lines; at most `limit` disagreements are listed."""
    yield f"{printable(agreement.question, 40)}: {basis_text(agreement)}"
    if agreement.corrected is not None:
        yield f"  {next(corrected_lines({agreement.question: agreement.corrected}))}"
    for rows in (confusion_table(agreement), list(agreement_rows(agreement))):
        yield from (f"  {line}" for line in columns(rows))
    if agreement.disagreements:
        yield f"  {plural(len(agreement.disagreements), 'disagreement')}:"
        yield from (f"    {row}" for row in _disagreements(agreement, limit))
        if limit is not None and len(agreement.disagreements) > limit:
            yield f"    … and {len(agreement.disagreements) - limit:,} more; --all lists them"


def _disagreements(agreement: Agreement, limit: int | None) -> Iterator[str]:
    for item in islice(agreement.disagreements, limit):
        note = f": {one_line('; '.join(item.notes), _NOTE_CHARS)}" if item.notes else ""
        yield f"{printable(item.trial)}: score {score_value_text(item.judge)}, label {score_value_text(item.label)}{note}"
