"""Hooks, collectors and tests: an evaluation is a collector, each of its trials and gates is a test."""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal.integrations.pytest.evaluation_run import EvaluationRun, end_session
from evaljournal.journal import JournalError
from evaljournal.journal.disk.segments import is_run
from evaljournal.replay.render.ending import ending_text, final_report
from evaljournal.replay.render.phrases import score_value_text
from evaljournal.replay.render.test_result import error_text, failure_text
from evaljournal.replay.runs.loaded_run import load
from evaljournal.replay.state.trial import failing_trials
from evaljournal.replay.text import escape_controls, plural
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.gates import Gate
from evaljournal.runner.errors import RunFailed, UsageError, command
from evaljournal.runner.runs.paths import runs_under
from evaljournal.runner.sessions.session import Outcome

_PROPERTY: Final = "evaljournal"
"""The property of a test result that has the path of the run; JUnit XML contains it, too."""
_STOPPED_BY_ERRORS: Final = frozenset({"failed_fast", "same_error"})
"""Outcomes of runs that errors have stopped; they are reported, and the other tests are skipped."""
_UNFINISHED: Final = 3
"""Exit code of a process that cannot end otherwise."""


class EvaluationPlugin:
    def __init__(self, config: pytest.Config) -> None:
        if config.getoption("dist", "no") not in {"no", "loadgroup"}:
            raise pytest.UsageError("the tests of an evaluation run in one worker of xdist: add --dist loadgroup")
        reuse = config.getoption("evals_reuse")
        if reuse is not None and not runs_under(Path(reuse)):
            raise pytest.UsageError(f"--evals-reuse: {escape_controls(reuse)} is not a run, and there is none below it")

        self._replies: dict[str, Any] = {}
        """Options of runs that are answered from recorded replies."""
        if replies := config.getoption("evals_replies"):
            from evaljournal.runner.steps.replies.offline import fill_keys  # noqa: PLC0415  # few sessions need it

            for name in replies:
                if not Path(name).is_file() and not is_run(Path(name)):
                    problem = "is not a run and not a packed file of replies"
                    raise pytest.UsageError(f"--evals-replies: {escape_controls(name)} {problem}")
            fill_keys()  # Before the test files make their clients.
            # Who runs tests trusts them, and the files beside them.
            self._replies = {"replies": tuple(replies), "offline": True, "trust": True}

        self._config = config
        self._runs: dict[str, EvaluationRun] = {}
        """Name of an evaluation → its run."""
        self._paths: dict[Path, None] = {}
        """Paths of the runs with a test result, also of those that workers of xdist have executed."""

    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str, obj: object) -> pytest.Collector | None:
        """Collect an evaluation, defined in a test file or imported by it."""
        if not isinstance(obj, Evaluation):
            return None
        return EvaluationCollector.from_parent(collector, name=name, evaluation=obj, plugin=self)

    def run_of(self, evaluation: "Evaluation[Any, Any, Any]", reference: str) -> EvaluationRun:
        """Return the run of an evaluation; several test files that import it share one."""
        evaluation_run = self._runs.get(evaluation.name)
        if evaluation_run is None:
            evaluation_run = self._runs[evaluation.name] = EvaluationRun(evaluation, reference)
        elif evaluation_run.evaluation is not evaluation:
            raise UsageError(f"two evaluations are named {evaluation.name!r}; rename one of them with name=…")
        return evaluation_run

    def start(self, evaluation_run: EvaluationRun, session: pytest.Session) -> None:
        config, trials = self._config, [item for item in session.items if isinstance(item, TrialItem)]
        evaluation_run.selected = frozenset(item.name for item in trials if item.run is evaluation_run)
        if reuse := config.getoption("evals_reuse"):
            evaluation_run.rescore(Path(reuse))
            return

        max_failures = config.getoption("maxfail")
        limit = {"max_failures": max(0, max_failures - session.testsfailed - 1)} if max_failures else {}
        evaluation_run.run(
            partial(self._announce, evaluation_run),
            retries=bool(config.getoption("lf", default=False)) and self._has_failed_before(evaluation_run),
            on_unresponsive=self._exit_immediately,
            **self._replies,
            **limit,
        )

    def _has_failed_before(self, evaluation_run: EvaluationRun) -> bool:
        """Return whether a test of an evaluation failed in the last session; otherwise `--lf` selects all tests."""
        collectors = tuple(f"{node_id}::" for node_id in evaluation_run.collectors)
        return any(node_id.startswith(collectors) for node_id in self._config.cache.get("cache/lastfailed", {}))

    def _without_capture(self) -> contextlib.AbstractContextManager[None]:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()

    def _announce(self, evaluation_run: EvaluationRun, path: Path) -> None:
        """Print where the run is; a worker of xdist has no terminal."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            trials = f"{evaluation_run.evaluation.name}: {plural(len(evaluation_run.selected), 'trial')}"
            with self._without_capture():
                reporter.write_line(f"{trials} in {path}; follow the run with {command('watch', path)}")

    def _exit_immediately(self, outcome: Outcome) -> None:
        """Exit if a call of a stopped run does not end: nothing else would end the process."""
        if outcome.stop_reason:
            with self._without_capture():
                sys.stderr.write(f"{outcome.summary_text}\n")
                sys.stderr.flush()
                os._exit(_UNFINISHED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._paths.update((Path(str(value)), None) for name, value in report.user_properties if name == _PROPERTY)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note that the session has ended; if it was interrupted, the next one resumes its runs."""
        is_worker = hasattr(self._config, "workerinput")  # It also ends if its session was killed.
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and not is_worker:
            for path in self._paths:
                end_session(path)

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        paths = [run.path for run in self._runs.values() if run.path]  # Without results if it was interrupted.
        for path in dict.fromkeys([*paths, *self._paths]):
            with contextlib.suppress(JournalError):  # Its tests have reported it.
                report = final_report(load(path).state, path=path)
                terminalreporter.section(str(path), "-")
                terminalreporter.write_line(report)


class EvaluationCollector(pytest.Collector):
    """An evaluation; its set-up, which pytest calls before the first of its tests, executes the run."""

    def __init__(self, *, evaluation: "Evaluation[Any, Any, Any]", plugin: EvaluationPlugin, **options: Any) -> None:
        super().__init__(**options)
        self._evaluation = evaluation
        self._plugin = plugin
        for mark in (*getattr(evaluation.task, "pytestmark", ()), *getattr(evaluation, "pytestmark", ())):
            self.add_marker(getattr(pytest.mark, mark.name).with_args(*mark.args, **mark.kwargs))

    def collect(self) -> Iterator[pytest.Item]:
        """Read the cases, and yield the trials and the gates; nothing is run."""
        try:
            run = self._run = self._plugin.run_of(self._evaluation, f"{os.path.relpath(self.path)}:{self.name}")
        except UsageError as exc:
            raise self.CollectError(str(exc)) from exc
        run.collectors.append(self.nodeid)
        for trial in run.trials:
            yield TrialItem.from_parent(self, name=trial, run=run)
        for gate in self._evaluation.settings.fail_under:
            yield GateItem.from_parent(self, name=f"gate:{gate}", run=run, gate=Gate.parse(gate))

    def setup(self) -> None:
        """Execute the run, unless another test file that imports the evaluation has done so."""
        if self._run.path is None:
            try:
                self._plugin.start(self._run, self.session)
            except (UsageError, JournalError) as exc:
                raise pytest.fail.Exception(escape_controls(str(exc)), pytrace=False) from None
            except KeyboardInterrupt:  # Its banner would show a line of evaljournal; the report says how to resume.
                pytest.exit("interrupted", returncode=pytest.ExitCode.INTERRUPTED)


class RunItem(pytest.Item):
    def __init__(self, *, run: EvaluationRun, name: str, parent: EvaluationCollector, **options: Any) -> None:
        # In a worker of xdist. The mark `xdist_group` has this effect only with pytest before 9.2.
        group = f"@{run.evaluation.name}" if parent.config.getoption("loadgroup", default=False) else ""
        # As text, which pytest parses as `--lf` does: an id that it joins itself is not found again if it has `[` or `::`.
        super().__init__(name=name, parent=parent, nodeid=f"{parent.nodeid}::{name}{group}", **options)
        self.run = run

    def setup(self) -> None:
        self.user_properties.append((_PROPERTY, str(self.run.path)))

    def reportinfo(self) -> tuple[os.PathLike[str], int, str]:
        """Return the file, a line and the name, for the headings of pytest, which needs a line to report a skipped test."""
        return self.path, 0, f"{self.parent.name if self.parent else ''}::{self.name}"


class TrialItem(RunItem):
    """A trial: an error if it has no output or a scorer has failed; a failing score fails it if `evals_strict` is set."""

    def setup(self) -> None:
        """Report an error, which pytest distinguishes from a failure by the phase."""
        super().setup()
        run, state = self.run, self.run.state
        if not run.is_done(self.name):
            problem = f"no result for this case in {run.path}: {ending_text(state)}"
            if state.outcome in _STOPPED_BY_ERRORS:
                pytest.skip(problem)
            pytest.fail(problem, pytrace=False)

        trial = state.trials[self.name]
        if trial.is_excluded:
            pytest.skip(f"excluded: the answer is {trial.answer_outcome}")
        if trial.stage == "failed" or trial.unscored:
            pytest.fail(escape_controls(error_text(run.source.trial(self.name))), pytrace=False)

    def runtest(self) -> None:
        trial, scorers = self.run.state.trials[self.name], self.run.evaluation.scorers
        text = "\n".join(f"{scorer}: {score_value_text(value)}" for scorer, (_, value) in trial.scores.items())
        is_failing = any(scorer.partition(".")[0] in scorers for scorer in trial.failing_scorers)
        if is_failing:
            text = failure_text(self.run.source.trial(self.name))
            if self.config.getini("evals_strict"):
                pytest.fail(escape_controls(text), pytrace=False)
        self.add_report_section("call", "scores", escape_controls(text))


class GateItem(RunItem):
    """A gate of the evaluation; it is skipped if trials were not selected, and have no result from an earlier session."""

    def __init__(self, *, gate: Gate, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate

    def runtest(self) -> None:
        run = self.run
        assert run.path is not None
        if open_trials := run.open_trials:
            text = f"{plural(len(open_trials), 'trial')} of {len(run.trials):,} without a result in {run.path}"
            if run.selected.isdisjoint(open_trials):
                pytest.skip(text)
            pytest.fail(text, pytrace=False)
        if problem := self._gate.result(run.state, run.path).problem:
            failure = RunFailed(run.path, [problem], failing_trials(run.state.trials))
            pytest.fail(escape_controls(str(failure)), pytrace=False)
