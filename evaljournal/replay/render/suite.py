"""The runs of a suite for people: a table with a line per evaluation, and the live screen.

Nothing here reads a clock, a file or the terminal's size. Names and errors are untrusted and are printed escaped.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from evaljournal.replay.render.ending import ending_text, larger_limits, total_trials
from evaljournal.replay.render.phrases import mean_text
from evaljournal.replay.render.screen import progress_line, time_left_text
from evaljournal.replay.results.budget_text import quantity
from evaljournal.replay.runs.idle import one_line, reasons
from evaljournal.replay.state.budget import round_up
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.tally import main_scorer
from evaljournal.replay.state.usage import total
from evaljournal.replay.text import columns, escape_controls, money, or_dash, plural, printable

if TYPE_CHECKING:
    from rich.console import Group

HEADER: Final = ("EVALUATION", "DONE", "ERRORS", "SCORE", "COST", "STATUS")
_MAX_NAME: Final = 30
_MAX_SCORER: Final = 20
_FRAME_LINES: Final = 7
"""Lines of the screen besides the evaluations."""


@attrs.frozen(kw_only=True)
class SuiteRow:
    name: str
    state: RunState | None = None
    """None if its run has not started."""
    now: float | None = None
    """Seconds of `t`, if the run is running."""
    total: int | None = None
    """Number of trials of a running run, if known."""
    stop_status: tuple[str, float] | None = None
    """Why the run is being stopped, and how many seconds attempts in flight have left."""
    stop_reason: str = ""
    """Why the session was stopped, if the disk was full and it could not be recorded."""
    error: str = ""
    """What ended the run, if it is not recorded."""

    @property
    def trials(self) -> int | None:
        return None if self.state is None else self.total or total_trials(self.state)

    @property
    def status(self) -> str:
        state, now = self.state, self.now
        if self.error:
            return self.error
        if state is None:
            return "not started"
        if now is None or state.outcome:
            return ending_text(state, self.stop_reason)
        if self.stop_status is not None:
            return f"stopping: {plural(len(state.trials.running) + state.totals.stages['scoring'], 'attempt')} in flight"
        waits = [reason for reason in reasons(state, now=now, total=self.total) if reason.reason != "none_left"]
        time_left = time_left_text(state, now=now, total=self.total)
        waiting = f"waiting: {one_line(waits)}" if waits else ""
        return " · ".join(filter(None, (time_left, waiting))) or "running"

    @property
    def cells(self) -> tuple[str, ...]:
        name, state, trials = printable(self.name, _MAX_NAME), self.state, self.trials
        if state is None:
            return name, "-", "-", "-", "-", printable(self.status, 200)
        done = f"{state.totals.done:,}" if trials is None else f"{state.totals.done:,} of {trials:,}"
        scorer = main_scorer((name, tally.kind) for name, tally in state.scores.items() if tally.mean is not None)
        score = "-"
        if scorer is not None:
            tally = state.scores[scorer]
            score = f"{printable(scorer, _MAX_SCORER)} {mean_text(tally.kind, tally.mean)}"
        return name, done, f"{state.failed:,}", score, or_dash(total(state.usage, "cost"), money), printable(self.status, 200)


def table_lines(rows: Sequence[SuiteRow]) -> list[str]:
    return columns([HEADER, *(row.cells for row in rows)])


def totals_text(rows: Sequence[SuiteRow]) -> str:
    """Return the totals of all evaluations: `120 of 180 trials done · 2 errors · cost $0.12 · budget: cost $0.14 of $5.00`.

    A budget also counts what interrupted calls may have cost, so more of it may be spent than the sum of the costs.
    """
    states = [row.state for row in rows if row.state is not None]
    errors = sum(state.failed for state in states)
    done, trials = _progress(rows)
    parts = [f"{done:,} done" if trials is None else f"{done:,} of {plural(trials, 'trial')} done", plural(errors, "error")]
    costs = [cost for state in states if (cost := total(state.usage, "cost")) is not None]
    parts += [f"cost {money(sum(costs))}"] if costs else []
    shares = [f"{unit} {quantity(unit, spent)} of {quantity(unit, limit)}" for unit, spent, limit in _shared_budget(states)]
    return " · ".join([*parts, *([f"budget: {', '.join(shares)}"] if shares else [])])


def _progress(rows: Sequence[SuiteRow]) -> tuple[int, int | None]:
    """Return how many trials are done, and of how many; None if that is unknown."""
    done = sum(row.state.totals.done for row in rows if row.state)
    totals = [count for row in rows if (count := row.trials) is not None]
    return done, sum(totals) if len(totals) == len(rows) else None


def _shared_budget(states: Sequence[RunState]) -> Iterator[tuple[str, float, float]]:
    """Yield the units of the budget that the runs share, what is spent, and the limit."""
    budgets = [state.budget for state in sorted(states, key=lambda state: state.at) if state.budget is not None]
    limits = next((budget.limits for budget in reversed(budgets) if budget.other_runs), {})
    for unit, limit in limits.items():
        yield unit, sum(budget.spent[unit] for budget in budgets), limit


def larger_budget(states: Sequence[RunState]) -> dict[str, float]:
    """Return a larger shared budget that is probably enough for all open trials; empty if a larger one does not help."""
    budgets = [(state.budget, larger_limits(state)) for state in states if state.outcome == "budget" and state.budget]
    limits: dict[str, float] = {}
    for unit, spent, _ in _shared_budget(states) if all(own_limits for _, own_limits in budgets) else ():
        used = [budget.spent[unit] + budget.other_runs.get(unit, 0.0) for budget, _ in budgets]
        needs = (max(0.0, own_limits.get(unit, 0.0) - amount) for (_, own_limits), amount in zip(budgets, used, strict=True))
        limits[unit] = round_up(spent + sum(needs))
    return limits


def suite_panel(rows: Sequence[SuiteRow], *, title: str, width: int, height: int) -> "Group":
    """Return the live screen of a suite; if it is too high, evaluations that have ended are left out first."""
    from rich.console import Group  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415  # slow to import

    room = max(1, height - _FRAME_LINES)
    shown = rows
    if len(rows) > room:
        running = [row for row in rows if row.now is not None and not (row.state and row.state.outcome)]
        shown = [*running, *(row for row in rows if row not in running)][:room]

    done, trials = _progress(rows)
    header, *lines = table_lines(shown)
    texts = [
        Text(title, style="bold"),
        Text(f"{done:,} done; total unknown") if trials is None else progress_line(Text(), done, trials, width=width),
        Text(header, style="dim"),
        *(Text(line, style=_style(row)) for row, line in zip(shown, lines, strict=True)),
    ]
    if len(shown) < len(rows):
        texts.append(Text(f"… and {plural(len(rows) - len(shown), 'more evaluation')}", style="dim"))
    texts.append(Text(totals_text(rows)))
    if any(row.stop_status is not None for row in rows):
        texts.append(Text("stopping; press Ctrl-C again to interrupt the attempts in flight", style="bold yellow"))

    for text in texts:
        text.plain = escape_controls(text.plain)
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis")
    return Group(*texts)


def _style(row: SuiteRow) -> str:
    if row.error or (row.state is not None and row.state.failed):
        return "red"
    return "yellow" if row.stop_status is not None or "waiting:" in row.status else ""
