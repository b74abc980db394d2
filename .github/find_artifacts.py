"""Find the runs of earlier jobs that the action may use; print the ids of their workflow runs as outputs of the step.

A run is used only if it was uploaded from this repository, not from a fork, from the right branch and by this workflow. Only an
unfinished run of the commit of this job is resumed. Jobs of a fork use none, nor do jobs of events that may execute code of a
fork with secrets.
"""  # noqa: INP001  # a script, not a package

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

EVENTS: Final = ("push", "pull_request", "merge_group", "schedule", "workflow_dispatch")
"""Events whose jobs use artifacts; not `pull_request_target`, `workflow_run` or `issue_comment`."""


def newest(artifacts: list[Any], branch: str, repository: str, workflow: object) -> Mapping[str, Any] | None:
    """Return the newest artifact that this workflow has uploaded from a branch of this repository."""
    usable = [artifact for artifact in artifacts if _is_usable(artifact, branch)]
    usable.sort(key=lambda artifact: str(artifact["created_at"]), reverse=True)
    own_artifacts = (artifact for artifact in usable if _workflow(repository, artifact["workflow_run"]["id"]) == workflow)
    return next(own_artifacts, None)


def _is_usable(artifact: Mapping[str, Any], branch: str) -> bool:
    origin = artifact.get("workflow_run") or {}
    repository = origin.get("repository_id")
    return (
        artifact.get("expired") is False
        and isinstance(origin.get("id"), int)
        and isinstance(repository, int)
        and repository == origin.get("head_repository_id")
        and origin.get("head_branch") == branch
    )


def outputs(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the outputs of the step: the workflow runs of the unfinished run and of the baseline, empty for none.

    The name of an unfinished run has the commit that was checked out. The API has only the last commit of a branch, but the job
    of a pull request checks out its merge with the base branch, which changes with that branch.
    """
    name, repository = variables["ARTIFACT"], variables["GITHUB_REPOSITORY"]
    event = variables["GITHUB_EVENT_NAME"]
    is_fork = event == "pull_request" and variables["HEAD_REPOSITORY"] != repository
    branch = variables.get("GITHUB_HEAD_REF") or (
        variables["GITHUB_REF_NAME"] if variables["GITHUB_REF_TYPE"] == "branch" else ""
    )
    base_branch = "" if variables["BASELINE"] else variables["BASELINE_BRANCH"]
    may_resume = variables["RESUME"] == "true" and bool(branch)
    no_runs = {"unfinished": "", "baseline": ""}
    if not name or is_fork or event not in EVENTS or not (base_branch or may_resume):
        return no_runs
    workflow = _workflow(repository, int(variables["GITHUB_RUN_ID"]))
    if workflow is None:
        return no_runs
    finished = _artifacts(repository, name)
    unfinished = None
    if may_resume:
        unfinished_artifacts = _artifacts(repository, f"{name}-unfinished-{variables['GITHUB_SHA']}")
        unfinished = newest(unfinished_artifacts, branch, repository, workflow)
    if unfinished is not None:
        newest_finished = newest(finished, branch, repository, workflow)
        if newest_finished is not None and newest_finished["created_at"] > unfinished["created_at"]:
            unfinished = None  # It was resumed and has finished.
    baseline = newest(finished, base_branch, repository, workflow) if base_branch else None
    return {"unfinished": _run_id(unfinished), "baseline": _run_id(baseline)}


def _run_id(artifact: Mapping[str, Any] | None) -> str:
    return "" if artifact is None else str(artifact["workflow_run"]["id"])


@cache
def _workflow(repository: str, run: int) -> int | None:
    """Return the id of the workflow of a workflow run; None if it is unknown."""
    workflow = _get(f"repos/{repository}/actions/runs/{run}").get("workflow_id")
    return workflow if isinstance(workflow, int) else None


def _artifacts(repository: str, name: str) -> list[Any]:
    artifacts = _get(f"repos/{repository}/actions/artifacts", "-f", f"name={name}", "-F", "per_page=100").get("artifacts", [])
    return [artifact for artifact in artifacts if artifact.get("name") == name]


def _get(path: str, *fields: str) -> dict[str, Any]:
    command = ["gh", "api", "-s", "method=GET", path, *fields]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  # no shell
    if result.returncode:
        sys.stderr.write("::warning::artifacts cannot be listed; the job needs `permissions: actions: read`\n")
        return {}
    response: dict[str, Any] = json.loads(result.stdout)
    return response


if __name__ == "__main__":
    for key, value in outputs(os.environ).items():
        sys.stdout.write(f"{key}={value}\n")
