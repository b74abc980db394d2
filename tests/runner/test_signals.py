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
