"""Signals reach whoever is to be told of them, for as long as that is so."""

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

from runner.signals import STOP_SIGNALS, handle_signals, is_from_signal, until_signal


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave every handler as it was."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_is_told_and_the_one_before_comes_back() -> None:
    """Each signal reaches the handler while it lasts, and whoever had it before afterwards, even if it ends by an error."""
    heard: list[int] = []
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(LookupError), handle_signals(lambda number, _: heard.append(number), *STOP_SIGNALS):
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
        raise LookupError

    assert list(STOP_SIGNALS) == heard
    assert before == [signal.getsignal(number) for number in STOP_SIGNALS]


def test_what_is_ignored_stays_ignored() -> None:
    """A process that was started to ignore Ctrl-C, in the background of a shell, goes on ignoring it."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handle_signals(lambda number, _: heard.append(number), *STOP_SIGNALS):
        signal.raise_signal(signal.SIGINT)

    assert ([], signal.SIG_IGN) == (heard, signal.getsignal(signal.SIGINT))


def test_other_threads_are_not_told() -> None:
    """In another thread than the main one nothing is changed, and nothing raised."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def elsewhere() -> None:
        with handle_signals(lambda *_: None, *STOP_SIGNALS):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert [before] == seen


def test_those_who_share_a_signal_are_all_told_and_may_end_in_any_order() -> None:
    """Of two who wait at once, the first may end first: the other is still told, and the last one gives the signal back."""
    heard: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    first = handle_signals(lambda *_: heard.append("first"), signal.SIGINT, shares=True)
    second = handle_signals(lambda *_: heard.append("second"), signal.SIGINT, shares=True)
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
    with handle_signals(lambda *_: heard.append("outer"), *STOP_SIGNALS):
        with handle_signals(lambda *_: heard.append("inner"), *STOP_SIGNALS):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "outer"] == heard


def test_a_handler_that_somebody_has_put_there_is_kept() -> None:
    """Whoever comes after it is told in its place for a while, and whoever came before it does not take it away."""
    heard: list[str] = []
    with handle_signals(lambda *_: heard.append("outer"), signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: heard.append("theirs"))
        theirs = signal.getsignal(signal.SIGTERM)
        with handle_signals(lambda *_: heard.append("inner"), signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "theirs"] == heard
    assert theirs is signal.getsignal(signal.SIGTERM)


async def test_what_is_done_until_a_signal_comes_ends_with_it() -> None:
    """Something that would go on for ever ends at the signal; what comes to its own end before says so."""

    async def for_ever() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    before = signal.getsignal(signal.SIGINT)

    assert not await until_signal(for_ever, signal.SIGINT)
    assert await until_signal(trio.lowlevel.checkpoint, signal.SIGINT)
    assert before is signal.getsignal(signal.SIGINT)


async def test_what_ignores_a_signal_is_not_ended_by_it() -> None:
    """Under `nohup`, or in the background of a shell, a signal that is ignored ends nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def to_the_end() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.testing.wait_all_tasks_blocked()

    assert await until_signal(to_the_end, *STOP_SIGNALS)


class Handler:
    """A handler that is an object."""

    def __call__(self, *_: object) -> None:
        raise KeyboardInterrupt


def interrupted(*_: object) -> None:
    """Be a handler that is a function."""
    raise KeyboardInterrupt


def caught(call: Callable[[], object]) -> BaseException:
    """Give what a call raises."""
    try:
        call()
    except BaseException as exc:  # noqa: BLE001  # that is what is looked at
        return exc
    raise AssertionError


def raised_anew() -> None:
    """Put another interruption in the place of the one that comes."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("anew") from None


@pytest.mark.parametrize("handler", [interrupted, Handler(), partial(interrupted, 1)])
def test_a_real_interruption_is_told_from_one_that_code_raises(handler: Callable[..., None]) -> None:
    """What a handler has raised is real, caught or in a group as it may be; what code raises of itself is not."""
    signal.signal(signal.SIGINT, handler)
    real = caught(lambda: signal.raise_signal(signal.SIGINT))
    own = caught(interrupted) if isinstance(handler, Handler) else KeyboardInterrupt()

    assert is_from_signal(real)
    assert is_from_signal(caught(raised_anew))
    assert is_from_signal(BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [real])]))
    assert not is_from_signal(BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]))
    assert not is_from_signal(own)
    assert not is_from_signal(ValueError())


def test_who_is_told_may_raise_a_real_interruption() -> None:
    """An interruption by somebody who is told of a signal is a real one."""
    with handle_signals(interrupted, signal.SIGTERM):
        real = caught(lambda: signal.raise_signal(signal.SIGTERM))
        signal.signal(signal.SIGINT, signal.SIG_IGN)

        assert is_from_signal(real)
        assert not is_from_signal(KeyboardInterrupt())


def test_an_interruption_counts_where_nothing_can_be_told() -> None:
    """Python's own handler leaves no trace: there, in the main thread, every interruption is taken for a real one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(is_from_signal(KeyboardInterrupt())))
    thread.start()
    thread.join()

    assert is_from_signal(KeyboardInterrupt())
    assert [False] == elsewhere
