"""`arun` inside asyncio, and the progress that IPython shows, without a kernel."""

import asyncio
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import evaljournal
from evaljournal import Case, UsageError, evaluation, load
from evaljournal.journal.errors import NotAJournal


async def ignore(_: object) -> None:
    await trio.lowlevel.checkpoint()


NAME = '<img src=x onerror="alert(1)">'


def define(count: int = 20, started: Callable[[], object] = lambda: None) -> Any:
    """Return an evaluation whose attempts take a moment."""

    @evaluation(cases=[Case(name=f"{NAME}{n}", input=n, expected=0) for n in range(count)], slots=2, policy="fixed", grace=5)
    async def slow(n: int) -> int:
        started()
        await trio.sleep(0.02)
        return n

    @slow.score
    def exact(output: int, expected: int) -> bool:
        return output == expected

    return slow


def test_the_event_loop_continues(tmp_path: Path) -> None:
    """Inside asyncio, the run has its own thread, and other tasks run meanwhile."""

    async def main() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        outcome = await evaljournal.arun(define(), tmp_path / "run")
        ticking.cancel()
        return outcome.state.completed, ticks

    completed, ticks = asyncio.run(main())

    assert 20 == completed
    assert ticks > 20


def test_a_cancelled_call_stops_gracefully(tmp_path: Path) -> None:
    """Attempts in flight end before the cancellation is raised; the run is resumed by the next call."""

    async def main() -> str:
        has_started = asyncio.Event()
        loop = asyncio.get_running_loop()
        slow = define(started=lambda: loop.call_soon_threadsafe(has_started.set))
        call = asyncio.create_task(evaljournal.arun(slow, tmp_path / "run"))
        await has_started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await call
        (note,) = cancelled.value.__notes__
        run = load(tmp_path / "run")
        assert ("interrupted", 0, []) == (run.state.outcome, run.state.trials.attempts.interrupted, [*run.state.trials.running])
        assert 0 < run.state.completed < 20
        assert 20 == (await evaljournal.arun(slow, tmp_path / "run", resume=True)).state.completed
        return str(note)

    assert f"{tmp_path / 'run'} was stopped gracefully; `run(…, resume=True)` resumes it" == asyncio.run(main())


def test_errors_are_raised_in_the_loop(tmp_path: Path) -> None:
    """An error of the session is raised by the call; outside of an event loop, the error names `run`."""
    with pytest.raises(NotAJournal):
        asyncio.run(evaljournal.arun(define(), tmp_path / "run", resume=True))
    with pytest.raises(UsageError, match=r"arun\(\) runs inside trio or asyncio; call run\(…\)"):
        evaljournal.arun(define(), tmp_path / "run").send(None)


class FrontEnd:
    """Stands in for IPython."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_kernel: bool = True, error: Exception | None = None) -> None:
        self.displays: list[tuple[dict[str, str], str, bool]] = []
        self._error = error
        shell = types.SimpleNamespace(**({"kernel": None} if has_kernel else {}))
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        vars(ipython).update(get_ipython=lambda: shell, display=display)
        vars(display).update(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, data: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw
        if self._error is not None:
            raise self._error
        self.displays.append((data, display_id, update))


def test_progress_is_one_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first display is updated until the run ends; names are escaped."""
    front_end = FrontEnd(monkeypatch)
    evaljournal.run(define(), tmp_path / "run")

    assert [False, *[True] * (len(front_end.displays) - 1)] == [update for *_, update in front_end.displays]
    assert 1 == len({display_id for _, display_id, _ in front_end.displays})
    data = front_end.displays[-1][0]
    assert "20 of 20 (100 %)" in data["text/plain"]
    assert data["text/plain"] in data["text/html"]
    assert "<img" not in "".join(data["text/html"] for data, *_ in front_end.displays)


def test_progress_in_a_terminal_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython without a kernel gets a line that is replaced; other programs get none."""
    evaljournal.run(define(), tmp_path / "first", quiet=True)
    trio.run(evaljournal.arun, define(), tmp_path / "second")
    assert ("", "") == capsys.readouterr()

    FrontEnd(monkeypatch, has_kernel=False)
    trio.run(evaljournal.arun, define(), tmp_path / "third")
    lines = capsys.readouterr().err

    assert lines.endswith("\x1b[K\n")
    assert (1, True) == (lines.count("\n"), "\r20 of 20 (100 %)" in lines)


def test_a_front_end_that_fails_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the display is ignored; an observer of the caller, or `quiet`, replaces it."""
    front_end = FrontEnd(monkeypatch, error=RuntimeError("no comm"))

    assert "" == evaljournal.run(define(), tmp_path / "run").stop_reason
    front_end = FrontEnd(monkeypatch)
    evaljournal.run(define(), tmp_path / "quiet", quiet=True)
    evaljournal.run(define(), tmp_path / "observed", observer=ignore)
    assert [] == front_end.displays


def test_results_as_html(tmp_path: Path) -> None:
    """An outcome has scores, failing cases, problems and a link; all values are escaped."""

    @evaluation(cases=[Case(name=NAME, input=1, expected=f"{NAME}\x1b[31m")])
    def echo(_: int) -> str:
        return f"{NAME}</td>"

    @echo.score
    def same(output: str, expected: str) -> evaljournal.Score:
        return evaljournal.Score(output == expected, reason=f"{NAME} differs")

    outcome = evaljournal.run(echo, tmp_path / "a <b> run", quiet=True, fail_under="same=1")
    html = outcome._repr_html_()

    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;&lt;/td&gt;</td>" in html
    assert f'<a href="{tmp_path}/a%20%3Cb%3E%20run" target="_blank">' in html
    assert "1 of 1 output fails:" in html
    assert "gate did not pass: same=1: the mean of same is 0" in html
    assert all(text not in html for text in ("<img", "<b>run", "\x1b"))
    assert NAME not in outcome.report()._repr_html_()
