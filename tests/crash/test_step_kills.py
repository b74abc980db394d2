"""Agents in processes that are killed with SIGKILL: how many calls are repeated."""

from pathlib import Path

import pytest

from benchmarks._server import serving
from benchmarks.steps import SLOTS, killed_runs

pytestmark = pytest.mark.slow

COMBINATIONS = [
    (kind, write_ahead) for kind in ("trio", "asyncio", "threads", "sdk", "gateway") for write_ahead in (True, False)
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "write_ahead"),
    [("threads", True), *(pytest.param(*values, marks=pytest.mark.exhaustive) for values in COMBINATIONS)],
)
def test_few_calls_are_repeated(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    write_ahead: bool,  # noqa: FBT001
) -> None:
    """After a kill, at most the calls in flight are repeated, and without `write_ahead` those of the last milliseconds."""
    is_exhaustive = request.node.get_closest_marker("exhaustive") is not None
    kills, cases = (6, 12) if is_exhaustive else (1, 4)
    with serving() as server:
        repeated = killed_runs(tmp_path, kind, kills, server=server, write_ahead=write_ahead, cases=cases)

    assert kills == repeated.kills
    assert max(repeated.per_kill) <= (SLOTS if write_ahead else 2 * SLOTS)
