"""Find the runs of earlier jobs that the action may use; print the ids of their workflow runs as outputs of the step.

A run is used only if it was uploaded from this repository, not from a fork, and from the right branch: `resume --trust`
executes what it names. Jobs of a fork use none, nor do jobs of events that may execute code of a fork with secrets.
"""  # noqa: INP001  # a script, not a package

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

EVENTS: Final = ("push", "pull_request", "merge_group", "schedule", "workflow_dispatch")
"""Events whose jobs use artifacts; not `pull_request_target`, `workflow_run` or `issue_comment`."""


def newest(artifacts: list[Any], branch: str) -> Mapping[str, Any] | None:
    """Return the newest artifact that was uploaded from a branch of this repository."""
    usable = [artifact for artifact in artifacts if _is_usable(artifact, branch)]
    return max(usable, key=lambda artifact: str(artifact["created_at"]), default=None)


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
    """Return the outputs of the step: the workflow runs of the unfinished run and of the baseline, empty for none."""
    name, repository = variables["ARTIFACT"], variables["GITHUB_REPOSITORY"]
    event = variables["GITHUB_EVENT_NAME"]
    is_fork = event == "pull_request" and variables["HEAD_REPOSITORY"] != repository
    if not name or is_fork or event not in EVENTS:
        return {"unfinished": "", "baseline": ""}
    branch = variables.get("GITHUB_HEAD_REF") or (
        variables["GITHUB_REF_NAME"] if variables["GITHUB_REF_TYPE"] == "branch" else ""
    )
    base_branch = "" if variables["BASELINE"] else variables["BASELINE_BRANCH"]
    may_resume = variables["RESUME"] == "true" and bool(branch)
    finished = _artifacts(repository, name) if base_branch or may_resume else []
    unfinished = newest(_artifacts(repository, f"{name}-unfinished"), branch) if may_resume else None
    newest_finished = newest(finished, branch)
    if unfinished is not None and newest_finished is not None and newest_finished["created_at"] > unfinished["created_at"]:
        unfinished = None  # It was resumed and has finished.
    return {"unfinished": _run_id(unfinished), "baseline": _run_id(newest(finished, base_branch) if base_branch else None)}


def _run_id(artifact: Mapping[str, Any] | None) -> str:
    return "" if artifact is None else str(artifact["workflow_run"]["id"])


def _artifacts(repository: str, name: str) -> list[Any]:
    command = [
        "gh",
        "api",
        "--method",
        "GET",
        f"repos/{repository}/actions/artifacts",
        "-f",
        f"name={name}",
        "-F",
        "per_page=100",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  # no shell
    if result.returncode:
        sys.stderr.write("::warning::artifacts cannot be listed; the job needs `permissions: actions: read`\n")
        return []
    artifacts = json.loads(result.stdout)["artifacts"]
    return [artifact for artifact in artifacts if artifact.get("name") == name]


if __name__ == "__main__":
    for key, value in outputs(os.environ).items():
        sys.stdout.write(f"{key}={value}\n")
