"""Signals reach whoever is to be told of them, for as long as that is so."""

import signal
import threading
from collections.abc import Iterator

import pytest

from runner.signals import STOPS, told


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave every handler as it was."""
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_is_told_and_the_one_before_comes_back() -> None:
    """Each signal reaches the handler while it lasts, and whoever had it before afterwards, even if it ends by an error."""
    heard: list[int] = []
    before = [signal.getsignal(number) for number in STOPS]
    with pytest.raises(LookupError), told(lambda number, _: heard.append(number), *STOPS):
        for number in STOPS:
            signal.raise_signal(number)
        raise LookupError

    assert list(STOPS) == heard
    assert before == [signal.getsignal(number) for number in STOPS]


def test_what_is_ignored_stays_ignored() -> None:
    """A process that was started to ignore Ctrl-C, in the background of a shell, goes on ignoring it."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with told(lambda number, _: heard.append(number), *STOPS):
        signal.raise_signal(signal.SIGINT)

    assert ([], signal.SIG_IGN) == (heard, signal.getsignal(signal.SIGINT))


def test_other_threads_are_not_told() -> None:
    """In another thread than the main one nothing is changed, and nothing raised."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def elsewhere() -> None:
        with told(lambda *_: None, *STOPS):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert [before] == seen


def test_those_who_share_a_signal_are_all_told_and_may_end_in_any_order() -> None:
    """Of two who wait at once, the first may end first: the other is still told, and the last one gives the signal back."""
    heard: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    first = told(lambda *_: heard.append("first"), signal.SIGINT, shares=True)
    second = told(lambda *_: heard.append("second"), signal.SIGINT, shares=True)
    hears = [first.__enter__(), second.__enter__()]
    signal.raise_signal(signal.SIGINT)
    first.__exit__(None, None, None)
    signal.raise_signal(signal.SIGINT)
    second.__exit__(None, None, None)

    assert ([True, True], ["second", "first", "second"]) == (hears, heard)
    assert before is signal.getsignal(signal.SIGINT)


def test_who_does_not_share_is_told_instead_of_those_before() -> None:
    """Only the innermost is told, and the one around it again when that has ended."""
    heard: list[str] = []
    with told(lambda *_: heard.append("outer"), *STOPS):
        with told(lambda *_: heard.append("inner"), *STOPS):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "outer"] == heard


def test_a_handler_that_somebody_has_put_there_is_kept() -> None:
    """Whoever comes after it is told in its place for a while, and whoever came before it does not take it away."""
    heard: list[str] = []
    with told(lambda *_: heard.append("outer"), signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: heard.append("theirs"))
        theirs = signal.getsignal(signal.SIGTERM)
        with told(lambda *_: heard.append("inner"), signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "theirs"] == heard
    assert theirs is signal.getsignal(signal.SIGTERM)
