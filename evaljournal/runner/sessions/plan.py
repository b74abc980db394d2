"""The plan of a session: settings and trials, checked against the journal of the run."""

import itertools
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from evaljournal.journal.events import RunStarted
from evaljournal.replay import RunState
from evaljournal.replay.state.budget import Amounts
from evaljournal.replay.state.definition import recorded_files
from evaljournal.replay.state.shards import Shard
from evaljournal.replay.text import as_text
from evaljournal.runner.calls import Billed, OpenableTask
from evaljournal.runner.calls.function import Loop, check_threads, resolve_loop
from evaljournal.runner.calls.prices import BATCH
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.data.case import Case, Trial
from evaljournal.runner.data.dataset import Dataset, Trials
from evaljournal.runner.data.fingerprint import unwrap_partial
from evaljournal.runner.data.templates import constant_template_error
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.definition.code_files import code_files
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.gates import check_gates
from evaljournal.runner.definition.limits import check_limits, declared_limits
from evaljournal.runner.definition.settings import OMITTED_DEFAULTS, Settings
from evaljournal.runner.definition.variants import MAX_UNCONFIRMED
from evaljournal.runner.errors import InvalidSetting, RunChanged, UsageError, command
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.runs.changes import case_changes, differences, effective_settings
from evaljournal.runner.sessions.environment import Environment
from evaljournal.runner.sessions.options import Options
from evaljournal.runner.sessions.rate_limits import TaskKeys, default_slots, has_elastic_slots, scorer_slots
from evaljournal.runner.sessions.workers import check_workers
from evaljournal.runner.signals import is_from_signal
from evaljournal.runner.steps.durable_requests import MODEL_CALLS

if TYPE_CHECKING:
    from evaljournal.runner.calls.workspaces.original import WorkspaceSource
    from evaljournal.runner.sessions.replies import Replies

_LIMIT_OF_JUDGE: Final = "limit its replies in Python with scorers.judge(MODEL, max_tokens=N)"


@attrs.frozen
class Plan:
    settings: Settings
    trials: Iterable[Trial]
    run_started: RunStarted
    """The first record of a new run; a resumed run compares it with the recorded one."""
    scorer_slots: Mapping[str, int]
    """Slots of the scorers that have a rate-limit key of their own, by name."""
    evaluation: Evaluation[Any, Any, Any]
    """The evaluation with the variants of this run."""
    keys: TaskKeys
    variants: Sequence[str]
    """Variants of `trials`; a session may run only some of the run's. Without variants, the only name is empty."""
    chosen_slots: int | None = None
    """The slots that the user has chosen; None: the default, which may be raised."""
    workspace: "WorkspaceSource | None" = None
    replies: "Replies | None" = None

    def has_elastic_slots(self, key: str) -> bool:
        """Return whether the slots of a rate-limit key may be raised during the run."""
        evaluation = self.evaluation
        return self.chosen_slots is None and has_elastic_slots(
            key, self.keys, evaluation.scorers, self.settings, evaluation.hooks
        )

    @property
    def total(self) -> int | None:
        """Number of trials, if known in advance."""
        return self.run_started.trials or None

    def declared_limits(self, model: str) -> dict[str, float]:
        """Return the declared limits of a model; each of several shards has its part."""
        return declared_limits(self.settings.limits, model, int(self.run_started.shard.rpartition("/")[2] or 1))

    def estimate(self, case: Case, variant: str, tier: str) -> Amounts:
        """Return the most that an attempt and its scorers are expected to use in a service tier; unknown units are missing."""
        (_, usage), *scorer_estimates = _estimates(self.evaluation, case, variant, tier)
        for _, scorer_usage in scorer_estimates:
            usage = {unit: usage[unit] + scorer_usage[unit] for unit in usage if unit in scorer_usage}
        return usage


@attrs.frozen
class SelectedTrials:
    evaluation: Evaluation[Any, Any, Any]
    """The evaluation with the variants of the run."""
    keys: TaskKeys
    trials: Trials


def _estimates(evaluation: Evaluation[Any, Any, Any], case: Case, variant: str, tier: str) -> Iterator[tuple[str, Amounts]]:
    """Yield the most that an attempt is expected to use, then each scorer that makes calls, with its name."""
    task: object = evaluation.tasks[variant]
    tiers = (tier,) if tier else ()
    usage: Amounts = dict(task.estimate(case, None, *tiers)) if isinstance(task, Billed) else {}
    yield "", usage
    output_tokens = usage.get("output_tokens") or None
    for scorer in evaluation.scorers.values():
        if not scorer.is_local:
            judge: object = scorer.function
            yield scorer.name, dict(judge.estimate(case, output_tokens, *tiers)) if isinstance(judge, Billed) else {}


def scheduling_settings(recorded: Mapping[str, Any], **others: Any) -> Settings:
    """Return the recorded settings that decide when calls start, and `others`; a custom policy is replaced."""
    policy, seed, timeout = (recorded.get(name) for name in ("policy", "seed", "timeout"))
    fields: dict[str, Any] = {
        "policy": policy if isinstance(policy, str) and policy in POLICIES else "adaptive",
        "seed": seed if isinstance(seed, int) else 0,
        "timeout": timeout if isinstance(timeout, int | float) else None,
        "limits": recorded.get("limits"),
        "retry": Retry.from_settings(recorded) if "retry" in recorded else Retry(),
    }
    return Settings(**fields | others)


def is_done(state: RunState, options: Options) -> bool:
    return state.outcome == "finished" and not (options.adopt or options.retry_failed)


def make_plan(
    evaluation: Evaluation[Any, Any, Any],
    overrides: Mapping[str, Any],
    options: Options,
    state: RunState,
    *,
    environment: Environment,
    path: Path,
    only_variants: Sequence[str],
) -> Plan:
    """Return the plan of a session; raise `RunChanged` if the run was started with another, unless the changes are adopted.

    `only_variants` are those of the session, if it runs only some of the run's.
    """
    earlier_settings = {} if options.ignore_recorded else state.settings
    settings, overridden_names = effective_settings(evaluation.settings, overrides, earlier_settings)
    if options.leave and not options.resume and not settings.batch:
        raise UsageError("leave=True (--leave) has no effect without batches; add --batch (batch=True)")

    replies: Replies | None = None
    if not settings.replies and settings.live_from is not None:
        raise UsageError(
            "has no effect without recorded replies; add --replies RUN", setting="live_from", value=settings.live_from
        )
    if settings.replies or state.settings.get("reply_sources"):
        from evaljournal.runner.sessions import replies as replies_module  # noqa: PLC0415  # few runs need it

        replies, settings, unused_names = replies_module.open_replies(evaluation, settings, state, path, trust=options.trust)
        overridden_names = [name for name in overridden_names if name not in unused_names]

    shard = _shard(options, state, path)
    settings = _with_variants(settings, only_variants, evaluation.variants, options, path)
    selection = select_trials(evaluation, settings, shard, only_variants, yes=options.yes)
    evaluation, keys = selection.evaluation, selection.keys
    variants = list(evaluation.with_variants(only_variants).tasks)

    trials = _read_first(selection.trials, evaluation)
    total = planned = (selection.trials.cases or 0) * settings.repeats * len(evaluation.tasks)
    if replies is not None and settings.live_from is not None:
        trials, planned = _with_output(replies, trials, variants, evaluation.tasks, count=selection.trials.cases is not None)

    shards = shard.count if shard else 1
    chosen_slots, slots = settings.slots, scorer_slots(evaluation.scorers, keys, settings.slots, shards)
    if settings.slots is None:
        settings = attrs.evolve(settings, slots=min(default_slots(task, shards) for task in evaluation.tasks.values()))
    if settings.workers is None and any(_runs_in_threads(task, settings.loop) for task in evaluation.tasks.values()):
        check_threads(settings.slots or 1, total)

    recorded_settings = settings.to_json(state.settings)
    if options.policy_factory is not None:
        policy = unwrap_partial(options.policy_factory)
        recorded_settings["policy"] = getattr(policy, "__qualname__", repr(policy))
    if replies is not None:
        recorded_settings["reply_sources"] = replies.to_json()

    source = evaluation.cases.source
    dataset = evaluation.cases.address or (str(source) if isinstance(source, Path) else f"{type(source).__name__} in Python")
    recorded_definition = None if options.ignore_recorded or state.started is None else state.started.definition
    definition = {**to_json(evaluation.definition), **code_files(evaluation, recorded_definition)}
    workspace = _read_workspace(settings, definition, recorded_definition, path)

    run_started = RunStarted(
        evaluation=evaluation.name,
        task=options.task,
        task_fingerprint=evaluation.fingerprint,
        scorers={scorer.name: scorer.version for scorer in evaluation.scorers.values()},
        definition=definition,
        dataset=dataset,
        dataset_fingerprint=selection.trials.fingerprint or "",
        trials=planned,
        settings={**recorded_settings, "scorer_slots": slots, "overridden": overridden_names},
        settings_fingerprint=settings.fingerprint,
        durability=settings.durability,
        environment=environment.versions,
        shard=str(shard or ""),
    )
    _check_unchanged(state, run_started, selection.trials, path, options)
    return Plan(settings, trials, run_started, slots, evaluation, keys, variants, chosen_slots, workspace, replies)


def _with_output(
    replies: "Replies", trials: Iterable[Trial], variants: Sequence[str], all_variants: Iterable[str], *, count: bool
) -> tuple[Iterator[Trial], int]:
    """Return the trials that have a recorded output, from whose steps they go on, and their number in all variants.

    The number is 0 unless they are to be counted; cases that can be read only once are not.
    """
    number, names = 0, tuple(all_variants)
    for trial in trials if count else ():
        if trial.variant == variants[0]:
            number += sum(replies.has_output(trial.case, name, trial.repeat) for name in names)
    if count and not number:
        raise UsageError(f"{replies.names} has an output of no case of this run, so nothing can start from its steps")
    return (trial for trial in trials if replies.has_output(trial.case, trial.variant, trial.repeat)), number


def _with_case_files(cases: Dataset, settings: Settings) -> Dataset:
    if settings.workspace is None:
        return cases
    from evaljournal.runner.calls.workspaces.original import COLUMN, case_files  # noqa: PLC0415  # few runs need it

    return cases.with_files([COLUMN]).with_check(case_files)


def _read_workspace(
    settings: Settings, definition: dict[str, Any], recorded_definition: Any, run: Path
) -> "WorkspaceSource | None":
    """Read the directory of the setting `workspace`, and add it to the files of a definition, which `resume` compares.

    Of a git repository, the recorded commit is used again, also if another one is checked out.
    """
    if settings.workspace is None:
        return None
    from evaljournal.runner.calls.workspaces import runs_directory  # noqa: PLC0415  # few runs need it
    from evaljournal.runner.calls.workspaces.original import WorkspaceSource  # noqa: PLC0415  # the same

    name, dirty = f"{settings.workspace.rstrip('/')}/", settings.workspace_dirty
    recorded_digest = recorded_files(recorded_definition)[1].get(name, "")
    outputs = (run, runs_directory())
    source = WorkspaceSource.read(Path(settings.workspace), dirty=dirty, recorded_digest=recorded_digest, outputs=outputs)
    code = definition.get("code", {"includes_opened": False, "files": {}})
    definition["code"] = {**code, "files": {**code["files"], name: source.digest}}
    return source


def select_trials(
    evaluation: Evaluation[Any, Any, Any],
    settings: Settings,
    shard: Shard | None,
    only_variants: Sequence[str] = (),
    *,
    yes: bool,
) -> SelectedTrials:
    """Select the trials of a session; raise a `UsageError` if the evaluation cannot run with these settings.

    Nothing is started, and cases that can be read only once are not read. `yes`: whether more than 1,000 variants may run.
    """
    evaluation.check_parameters()
    shares = {name for name, scorer in evaluation.scorers.items() if scorer.is_share}
    check_gates(settings.fail_under, evaluation.scorers, shares=shares)
    _check_limits(evaluation, settings, shard)

    evaluation = evaluation.with_variants(settings.only_variants)
    if len(evaluation.variants) > MAX_UNCONFIRMED and not yes:
        hint = "--yes, or yes=True in Python, runs them all; --only-variant selects some"
        raise UsageError(
            f"{evaluation.name!r} has {len(evaluation.variants):,} variants, more than {MAX_UNCONFIRMED:,}", hint=hint
        )

    keys = TaskKeys.of(evaluation, settings.limit_key)
    with _convert_read_errors():
        cases = evaluation.cases
        for function in _limited_by_cost(evaluation, settings):
            cases = cases.with_check(function.check_price)
        if settings.limit_key is not None:
            cases = cases.with_check(keys.check)
        if settings.batch:
            cases = cases.with_check(partial(_check_batched_case, evaluation, settings.budget or {}))
        cases = _with_case_files(cases, settings)
        variants = list(evaluation.with_variants(only_variants).tasks)
        trials = cases.select(settings, repeats=settings.repeats, variants=variants, shard=shard)
        if (trials.all_cases or 0) > 1 and _constant_templates(evaluation):
            for trial in itertools.islice(trials, 1):
                raise _constant_template_error(evaluation, trial.case)

    _check_loops(evaluation, settings)
    if settings.gateway:
        for task in evaluation.tasks.values():
            _check_gateway(task)
    check_workers(evaluation, settings)
    _check_workspace(evaluation, settings)
    _check_batches(evaluation, settings)
    if settings.durable:
        _watch_clients(evaluation, settings)
    settings.failure_limit(trials.cases)
    return SelectedTrials(evaluation, keys, trials)


def _limited_by_cost(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> list[Billed]:
    """Return the tasks and judges that must have a price, because a budget limits their cost."""
    is_run_limited, is_trial_limited = "cost" in (settings.budget or ()), "cost" in (settings.budget_per_trial or ())
    tasks = evaluation.tasks.values() if is_run_limited or is_trial_limited else ()
    judges = [scorer.function for scorer in evaluation.scorers.values()] if is_run_limited else []
    return [function for function in (*tasks, *judges) if isinstance(function, Billed)]


def _with_variants(
    settings: Settings, names: Sequence[str], variants: Collection[str], options: Options, path: Path
) -> Settings:
    """Add variants to a run that was started with only some of them; raise `RunChanged` unless that is adopted."""
    added_names = tuple(name for name in names if name in variants and name not in settings.only_variants)
    if not (settings.only_variants and added_names):
        return settings
    if not options.adopt:
        hint = f"{options.how_to_resume(path, adopt=True)} adds {', '.join(map(repr, added_names))}"
        raise RunChanged(f"{path} has only the variants {', '.join(map(repr, settings.only_variants))}", hint=hint)
    return attrs.evolve(settings, only_variants=(*settings.only_variants, *added_names))


def _check_loops(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Raise a `UsageError` if the code of a function uses trio and asyncio, so that its event loop is unknown."""
    scorers = ((scorer.function, None) for scorer in evaluation.scorers.values())
    hooks = (hook.function for hook in evaluation.hooks.values())
    for function, loop in [*((task, settings.loop) for task in (*evaluation.tasks.values(), *hooks)), *scorers]:
        if not isinstance(function, OpenableTask):
            resolve_loop(function, loop)


def _runs_in_threads(task: object, loop: Loop | None) -> bool:
    return not isinstance(task, OpenableTask) and callable(task) and resolve_loop(task, loop) is None


def _check_gateway(task: object) -> None:
    """Raise a `UsageError` if a task makes no calls that a gateway could forward, or no provider can be called."""
    from evaljournal.runner.steps.gateway.providers import providers_from_environment  # noqa: PLC0415  # an HTTP client is slow to import

    if not _is_own_program(task):
        raise UsageError("only commands and functions call models through the gateway", setting="gateway", value=True)
    providers_from_environment()


def _is_own_program(task: object) -> bool:
    """Return whether a task is a function or a command."""
    return not isinstance(task, OpenableTask) or bool(getattr(task, "starts_processes", False))


def _check_workspace(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Raise a `UsageError` if the tasks cannot use a workspace, or need one."""
    if settings.workspace is None:
        for name, scorer in evaluation.scorers.items():
            if getattr(scorer.function, "needs_workspace", False):
                raise UsageError(f"the scorer {name!r} executes a command in the workspace of an output; pass --workspace DIR")
        if any(getattr(task, "uses_workspace", False) for task in evaluation.tasks.values()):
            raise UsageError("the command contains {workspace}; pass --workspace DIR, or write {{workspace}}")
        if any(getattr(task, "variant_files", None) for task in evaluation.tasks.values()):
            raise UsageError("--variant-files adds files to workspaces; pass --workspace DIR, which may be an empty directory")
        for name in ("workspace_dirty", "agent_home", "keep"):
            if getattr(settings, name) != OMITTED_DEFAULTS[name]:
                raise UsageError("has no effect without --workspace", setting=name, value=getattr(settings, name))
    elif settings.workers is not None:
        raise UsageError("workspaces are on this machine; remove --workers", setting="workspace", value=settings.workspace)
    elif not all(map(_is_own_program, evaluation.tasks.values())):
        problem = "only commands and functions have a workspace; an endpoint or a chat model cannot see it"
        raise UsageError(problem, setting="workspace", value=settings.workspace)


def _check_limits(evaluation: Evaluation[Any, Any, Any], settings: Settings, shard: Shard | None) -> None:
    """Raise a `UsageError` if declared rate limits cannot apply to the calls of the evaluation."""
    if not settings.limits:
        return

    callees = [*evaluation.tasks.values(), *(scorer.function for scorer in evaluation.scorers.values())]
    chats = [getattr(callee, "chat", callee) for callee in callees]
    models = {str(model) for chat in chats if isinstance(chat, Billed) and (model := getattr(chat, "model", None))}

    is_known = settings.limit_key is None
    if (
        is_known
        and any("{" in model for model in models)
        and any(isinstance(size, Mapping) for size in settings.limits.values())
    ):
        raise UsageError("cases name the models; add -s limit-key=…", setting="limits", value="MODEL=…")

    problem, is_seen = "", settings.sees_model_calls
    for task in evaluation.tasks.values():
        if isinstance(task, Billed | RecordedOutput):
            continue
        if not _is_own_program(task):
            problem = "an endpoint reports no tokens; limit its requests with --rpm, or call the model with --chat"
        elif is_seen:
            is_known = False
        elif isinstance(task, OpenableTask):
            problem = "the tokens of a command are unknown; add --gateway, which sees its model calls, or use --rpm"
        else:
            problem = (
                "the tokens of a function are unknown; add -s durable=http (durable='http' in Python) or --gateway, "
                "which see its model calls, or use --rpm"
            )

    check_limits(settings.limits, models=models if is_known else None, shards=shard.count if shard else 1, problem=problem)


def _check_batches(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Raise a `UsageError` if the calls of the evaluation cannot be sent in batches, or a setting of batches has no effect."""
    if settings.batch:
        from evaljournal.runner.gates.batch_targets import BatchTargets  # noqa: PLC0415  # an HTTP client is slow to import

        if settings.workers is not None:
            raise UsageError("attempts in batches run in no worker; remove workers", setting="batch", value=True)
        BatchTargets.of(evaluation, required=True)
    elif settings.batch_fallback or settings.batch_tokens is not None:
        name = "batch_fallback" if settings.batch_fallback else "batch_tokens"
        raise UsageError("has no effect without batches; add --batch (batch=True)", setting=name, value=getattr(settings, name))


def _check_batched_case(evaluation: Evaluation[Any, Any, Any], budget: Mapping[str, float], case: Case) -> None:
    """Raise a `UsageError` if a case needs several calls of a judge, or the budget of its calls cannot be estimated."""
    for name, scorer in evaluation.scorers.items():
        if getattr(scorer.function, "calls", lambda _: 1)(case) > 1:
            problem = f"the judge {name!r} is called several times for the case {case.name!r}, once for each graded assertion"
            raise UsageError(f"{problem}; a batch has one call", setting="batch", value=True)
    for variant in evaluation.tasks if budget else ():
        for scorer_name, usage in _estimates(evaluation, case, variant, BATCH):
            if unknown_units := budget.keys() - usage.keys():
                raise _estimate_error(min(unknown_units), case, scorer_name, has_token_limit="output_tokens" in usage)


def _estimate_error(unit: str, case: Case, scorer_name: str, *, has_token_limit: bool) -> UsageError:
    calls = f"the judge {scorer_name!r} for the case" if scorer_name else "the case"
    problem = f"the {unit} of {calls} {case.name!r} cannot be estimated, so a budget cannot limit batches"
    hints = [] if has_token_limit else [_LIMIT_OF_JUDGE if scorer_name else "pass --max-tokens"]
    if scorer_name:
        hints.append("remove the judge and add its scores later with `rescore`, which has no budget")
    return UsageError(
        problem, setting="batch", value=True, hint=", ".join([*hints, "or remove the budget"]).removeprefix("or ")
    )


def _watch_clients(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Let the HTTP clients of the task record steps; raise a `UsageError` if they cannot."""
    from evaljournal.runner.steps.http_clients import watch_clients  # noqa: PLC0415  # an HTTP client is slow to import

    problem = ""
    if any(isinstance(task, OpenableTask) for task in evaluation.tasks.values()):
        problem = "the task must be a Python function; a command can call models through the gateway"
    elif settings.gateway and MODEL_CALLS in settings.durable:
        problem = "the gateway records the same calls; use one of them"
    if problem:
        raise UsageError(problem, setting="durable", value=", ".join(settings.durable))
    watch_clients()


def _shard(options: Options, state: RunState, path: Path) -> Shard | None:
    """Return the shard of the run; a resumed run keeps its own."""
    if state.started is None:
        return options.shard
    recorded_text = state.started.shard
    try:
        recorded_shard = Shard.parse(recorded_text) if recorded_text else None
    except ValueError as exc:
        raise InvalidSetting(f"shard={recorded_text!r:.80}: {exc}") from exc
    if options.shard != recorded_shard and (options.shard or options.ignore_recorded):
        kind, shard = (f"is shard {recorded_text}", recorded_text) if recorded_text else ("has the cases of all shards", "none")
        hint = f"pass shard {shard} or the path of another run"
        raise UsageError(f"{path} {kind}", setting="shard", value=str(options.shard or "none"), hint=hint)
    return recorded_shard


@contextmanager
def _convert_read_errors() -> Generator[None]:
    """Convert an error of the user's code that reads the cases to a `UsageError`."""
    try:
        yield
    except BaseException as exc:
        if isinstance(exc, UsageError) or is_from_signal(exc):
            raise
        error = describe(exc)
        raise UsageError(f"the cases cannot be read: {error.type}: {error.message}") from exc


def _constant_templates(evaluation: Evaluation[Any, Any, Any]) -> dict[str, str]:
    """Return the variants that would send the same request for every case, each with its template."""
    templates = {name: str(getattr(task, "constant_template", "")) for name, task in evaluation.tasks.items()}
    return {name: template for name, template in templates.items() if template}


def _constant_template_error(evaluation: Evaluation[Any, Any, Any], case: Case) -> UsageError:
    variant, template = next(iter(_constant_templates(evaluation).items()))
    task: Any = evaluation.tasks[variant]
    name = f"variant {variant!r}: {template}" if variant else template
    return constant_template_error(name, as_text(task.request(case)), case)


def _read_first(trials: Trials, evaluation: Evaluation[Any, Any, Any]) -> Iterable[Trial]:
    """Return the trials. If the cases can be read only once, the first is read, which rejects an empty source.

    If every case would send the same request, the second is read, too, and rejected.
    """
    if trials.cases is not None:
        return trials
    iterator = iter(trials)
    with _convert_read_errors():
        first_trials = list(itertools.islice(iterator, 1))
        for trial in iterator if _constant_templates(evaluation) else ():
            first_trials.append(trial)
            if trial.case is not first_trials[0].case:
                raise _constant_template_error(evaluation, trial.case)
        return itertools.chain(first_trials, iterator)


def _check_unchanged(state: RunState, new_start: RunStarted, trials: Trials, path: Path, options: Options) -> None:
    old_start, open_batches = state.started, state.batches.lines.open
    if old_start is None or is_done(state, options) or (options.adopt and not open_batches):
        return

    changes = [] if old_start.is_replacement else differences(old_start, new_start, state.settings)
    if new_start.dataset_fingerprint != old_start.dataset_fingerprint:
        changes += case_changes(state, trials)

    if changes and options.adopt:
        hint = (
            f"collect them with {command('resume', path, ' --wait')}, without the changes, or {command('cancel', path)} first"
        )
        raise RunChanged(f"{path} has open batches, so changes cannot be adopted", changes=changes, hint=hint)
    if changes:
        hint = f"{options.how_to_resume(path, adopt=True)} accepts the changes; unchanged trials keep their results"
        if options.ignore_recorded:
            hint = "pass another -o to start a new run"
        raise RunChanged(f"{path} was started with a different definition", changes=changes, hint=hint)
