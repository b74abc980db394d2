"""Labels as people write them: `judge=yes` on the command line, and the rows of a CSV or JSONL file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal import Blob
from evaljournal.replay import LoadedRun
from evaljournal.replay.export.tables import without_formula
from evaljournal.replay.review.labels import Review
from evaljournal.replay.runs.loaded_run import read_values
from evaljournal.replay.state.trial import Value
from evaljournal.replay.text import as_text
from evaljournal.runner.data.readers import place, rows
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.review.journal import Annotation, check_texts, check_trial

PASSES: Final[Mapping[str, bool]] = {"yes": True, "no": False, "true": True, "false": False}
_PASSES_OR_BITS: Final = {**PASSES, "1": True, "0": False, "1.0": True, "0.0": False}
_REVIEWER_COLUMNS: Final = ("reviewer", "annotator")
_NOTE_COLUMNS: Final = ("note", "comment")


def parse_value(run: LoadedRun, name: str, value: Any) -> Value:
    """Return a label as it is recorded; its type is that of the scorer's values. Empty text withdraws a label."""
    text = value.strip() if isinstance(value, str) else str(value)
    if text == "" or not isinstance(value, bool | int | float | str):
        if text:
            raise UsageError(f"{name}: a label is yes, no, a number or text, not {text[:80]}")
        return ""

    kind = run.state.scores[name].kind if name in run.state.scores else "nothing"
    if kind == "label":
        return text
    if kind == "pass":
        if text.lower() not in _PASSES_OR_BITS:
            raise UsageError(f"invalid label {text[:80]!r} for scorer {name!r}: expected yes or no")
        return _PASSES_OR_BITS[text.lower()]
    if text.lower() in PASSES and kind != "number":
        return PASSES[text.lower()]

    number = _number(text)
    if number is None and kind == "number":
        raise UsageError(f"invalid label {text[:80]!r} for scorer {name!r}: expected a number")
    return text if number is None else number


def parse_label(run: LoadedRun, text: str) -> tuple[str, Value]:
    """Return the name and the value of a label on the command line: `judge=yes`."""
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text!r} is not a label", hint="write it as NAME=LABEL, such as judge=yes")
    return name.strip(), parse_value(run, name.strip(), value)


def _number(text: str) -> int | float | None:
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        return number if math.isfinite(number) and abs(number) <= 1 << 53 else None
    return None


def check_name(run: LoadedRun, review: Review, name: str) -> str:
    """Raise if a name is probably a mistyped scorer; return a note if the labels check no scorer, otherwise an empty text."""
    if not name.strip() or not name.isprintable():
        raise UsageError(f"{name!r} is not a name for a label", hint="use the name of a scorer, as in judge=yes")
    scorers = set(run.state.scores) | set(run.state.started.scorers if run.state.started else {})
    if name in scorers:
        return ""
    is_used = any(label.name == name for label in review.history) or any(s.name == name for s in review.samples.values())
    if not is_used and (hint := suggest(name, scorers)):
        raise UsageError(f"{run.path} has no scorer {name!r}{hint}")
    return f"{run.path} has no scorer {name!r}: these labels are compared between reviewers only"


@attrs.frozen
class LabelRow:
    place: str
    """The file and its line."""
    trial: str
    name: str
    value: Any
    note: str
    reviewer: str
    output: Any = None
    """The labeled output, if the file has it."""


def read_rows(path: Path, names: Sequence[str]) -> Iterator[LabelRow]:
    """Read the labels in a CSV, JSONL or JSON file: with our columns, or an export of Label Studio or Argilla.

    An empty value is no label.
    `names` are the names of labels, which may be columns of the file.
    """
    for number, row in rows(path):
        where = place(path, number)
        read = _label_studio if _is_label_studio(row) else _argilla if _is_argilla(row) else _own
        try:
            yield from (item for item in read(row, names, where) if item.value is not None and str(item.value).strip())
        except (AttributeError, TypeError, ValueError) as exc:
            raise UsageError(f"{where}: not a row of labels ({exc!s:.200})") from exc


def read_annotations(run: LoadedRun, review: Review, path: Path, reviewer: str, *, is_blind: bool) -> list[Annotation]:
    """Read the labels in a file; raise, naming the line, if one of them cannot be recorded. `reviewer`: if a row has none."""
    scorers = dict.fromkeys([*run.state.scores, *(run.state.started.scorers if run.state.started else {})])
    questions = [*(sample.name for sample in review.samples.values()), *(label.name for label in review.history)]

    items, annotations = list(read_rows(path, [*scorers | dict.fromkeys(questions)])), list[Annotation]()
    for item in items:
        try:
            check_trial(run, item.trial)
            check_name(run, review, item.name)
            value = parse_value(run, item.name, item.value)
            fields: dict[str, Any] = {"note": item.note, "reviewer": item.reviewer.strip() or reviewer, "is_blind": is_blind}
            annotations.append(Annotation(trial=item.trial, name=item.name, value=value, **fields))
            check_texts(annotations[-1])
        except UsageError as exc:
            raise UsageError(f"{item.place}: {exc}") from exc

    if not annotations:
        raise UsageError("the file has no labels", path=path)
    check_contradictions(annotations, [item.place for item in items])
    _check_outputs(run, [item for item in items if item.output is not None])
    return annotations


def check_contradictions(annotations: Sequence[Annotation], places: Sequence[str]) -> None:
    """Raise if a reviewer gives one output two values at once; `places` are where the labels are written."""
    first_places: dict[tuple[str, str, str], tuple[Value, str]] = {}
    for annotation, where in zip(annotations, places, strict=True):
        name, trial, reviewer = annotation.name, annotation.trial, annotation.reviewer
        value, first_place = first_places.setdefault((name, trial, reviewer), (annotation.value, where))
        if value != annotation.value:
            raise UsageError(
                f"{first_place} and {where} contradict each other: two labels {name!r} of {reviewer!r} for {trial!r}"
            )


def _check_outputs(run: LoadedRun, items: Sequence[LabelRow]) -> None:
    for item, values in zip(items, read_values(run.path, run.state.trials, (item.trial for item in items)), strict=True):
        output = values.output.load() if isinstance(values.output, Blob) else values.output
        if not _is_same_text(item.output, output):
            raise UsageError(f"{item.place}: the label is for another output than that of {item.trial!r} in {run.path}")


def _is_same_text(text: Any, output: Any) -> bool:
    """Return whether a file has this output, as JSON or as text; our own CSV files have apostrophes before formulas."""
    return text == output or as_text(text) in {as_text(output), without_formula(as_text(output))}


def _is_label_studio(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("annotations"), list) and isinstance(row.get("data"), dict)


def _label_studio(row: Mapping[str, Any], _: Sequence[str], where: str) -> Iterator[LabelRow]:
    """One task: `data.trial`, and `annotations` with choices, ratings, numbers or texts; a text named `note` is a note."""
    for annotation in row["annotations"]:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        author = annotation.get("completed_by", "")
        reviewer = author.get("email") or author.get("id", "") if isinstance(author, dict) else author
        values: dict[str, Any] = {}
        for result in annotation.get("result") or ():
            content = result.get("value") if isinstance(result, dict) else None
            if isinstance(content, dict):
                contents = [content[key] for key in ("choices", "rating", "number", "text") if key in content]
                values[str(result.get("from_name", ""))] = _single(contents[0], where) if contents else ""

        note = str(values.pop("note", "") or "")
        for name, value in values.items():
            yield _row(row["data"], where, name, value, note=note, reviewer=reviewer)


def _is_argilla(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("responses"), dict) or any(name.endswith(".responses") for name in row)


def _argilla(row: Mapping[str, Any], _: Sequence[str], where: str) -> Iterator[LabelRow]:
    """One record, nested or flattened: the trial is in its metadata or fields, or its `id`; a question `note` is a note."""
    data = {**row, "trial": row.get("trial") or row.get("id"), **(row.get("fields") or {}), **(row.get("metadata") or {})}
    answers: dict[tuple[str, str], Any] = {}
    for name, responses in (row.get("responses") or {}).items():
        answers |= {(str(response.get("user_id", "")), name): response.get("value") for response in responses}
    for column in (column for column in row if column.endswith(".responses")):
        values, users = row[column] or (), row.get(f"{column}.users") or ()
        statuses = row.get(f"{column}.status") or ["submitted"] * len(values)
        for value, user, status in zip(values, users, statuses, strict=True):
            if status == "submitted":
                answers[str(user), column.removesuffix(".responses")] = value

    for (reviewer, name), value in answers.items():
        if name != "note":
            note = str(answers.get((reviewer, "note")) or "")
            yield _row(data, where, name, _single(value, where), note=note, reviewer=reviewer)


def _own(row: Mapping[str, Any], names: Sequence[str], where: str) -> Iterator[LabelRow]:
    """A row with `name` and `value`, or with a column for each name."""
    reviewer = next((row[column] for column in _REVIEWER_COLUMNS if row.get(column) not in (None, "")), "")
    note = next((row[column] for column in _NOTE_COLUMNS if row.get(column) not in (None, "")), "")
    for column, text in (("reviewer", reviewer), ("note", note)):
        if not isinstance(text, str):
            raise UsageError(f"{where}: the {column} is not text: {text!r:.80}")

    if "name" in row and "value" in row:
        yield _row(row, where, str(row["name"]), row["value"], note=note, reviewer=reviewer)
        return
    columns = [name for name in names if name in row]
    if not columns:
        expected = f"`name` and `value`, or one of {', '.join(names)}" if names else "`name` and `value`"
        raise UsageError(f"{where}: no label; expected the columns {expected}")
    for name in columns:
        yield _row(row, where, name, row[name], note=note, reviewer=reviewer)


def _row(data: Mapping[str, Any], where: str, name: str, value: Any, *, note: str, reviewer: Any) -> LabelRow:
    trial = data.get("trial")
    if isinstance(trial, int) and not isinstance(trial, bool):
        trial = str(trial)
    if not isinstance(trial, str) or not trial:
        raise UsageError(f"{where}: no trial; expected its name, as `evaljournal show` lists it, in the column `trial`")
    return LabelRow(where, trial, name, value, note, str(reviewer), data.get("output"))


def _single(value: Any, where: str) -> Any:
    """Return the one element of a list; other values unchanged."""
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise UsageError(f"{where}: {len(value)} choices, expected 1")
    return value[0]
