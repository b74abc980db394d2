"""The retry rules of a recorded session, with which an audit recomputes its retries."""

from collections.abc import Mapping
from typing import Any

import attrs

from evaljournal.journal import events
from evaljournal.replay.auditing.findings import RetryDecision
from evaljournal.replay.state.trial import TrialState
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import Retry, settle
from evaljournal.version import installed_version


@attrs.frozen
class SessionRetries:
    """The retry rules of one session; an audit's `RetryRules`."""

    retry: Retry
    seed: int
    caveat: str

    def settle(self, event: RetryDecision, trial: TrialState, *, probe: bool, over_limit: bool) -> RetryDecision:
        """Return the event that the rules require in place of the recorded `event`.

        Three things are not recorded, and follow from the event: whether a probe was free, whether a fatal failure stopped the
        run (only then is it retried), and the option `on_ambiguous`.
        """
        history, reason = trial.retry_history, event.reason
        is_fatal = trial.stage == "unsettled" and history is not None and history.category == "fatal"
        return settle(
            event.trial,
            trial,
            self.retry,
            self.seed,
            probe=probe and reason == "probe",
            stop_run=is_fatal and not isinstance(event, events.TrialFailed),
            over_limit=over_limit,
            ambiguous=isinstance(event, events.TrialFailed) and reason == "ambiguous",
        )


def retry_rules(run_started: events.RunStarted, settings: Mapping[str, Any]) -> SessionRetries | str:
    """Return the retry rules of a session, or why they cannot be rebuilt."""
    seed = settings.get("seed")
    if not isinstance(seed, int):
        return "the journal does not record the seed"
    try:
        retry = Retry.from_settings(settings)
    except (ValueError, TypeError, KeyError, UsageError) as exc:
        return f"invalid settings ({exc})"
    version = installed_version()
    recorded_version = run_started.environment.get("evaljournal", version)
    caveat = f"the run was started by evaljournal {recorded_version}, and this is {version}; only that release can reproduce it"
    return SessionRetries(retry, seed, "" if recorded_version == version or not version else caveat)
