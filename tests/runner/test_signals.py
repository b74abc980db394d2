"""Signal handlers: installing, nesting and removing them."""

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

from evaljournal.runner.signals import STOP_SIGNALS, handle_signals, is_from_signal, until_signal


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No signal is ignored, as it may be by the process that started the tests; afterwards, restore every handler."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_is_installed_and_removed() -> None:
    """Each signal calls the handler during the block; afterwards the previous one is restored, even after an error."""
    received: list[int] = []
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(LookupError), handle_signals(lambda number, _: received.append(number), *STOP_SIGNALS):
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
        raise LookupError

    assert list(STOP_SIGNALS) == received
    assert before == [signal.getsignal(number) for number in STOP_SIGNALS]


def test_ignored_signals_stay_ignored() -> None:
    """A process that was started with SIGINT ignored, as in the background of a shell, keeps ignoring it."""
    received: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handle_signals(lambda number, _: received.append(number), *STOP_SIGNALS):
        signal.raise_signal(signal.SIGINT)

    assert ([], signal.SIG_IGN) == (received, signal.getsignal(signal.SIGINT))


def test_nothing_is_installed_in_other_threads() -> None:
    """Outside the main thread nothing is installed, and nothing is raised."""
    before = signal.getsignal(signal.SIGINT)
    results: list[object] = []

    def elsewhere() -> None:
        with handle_signals(lambda *_: None, *STOP_SIGNALS):
            results.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert [before] == results


def test_chained_handlers_may_end_in_any_order() -> None:
    """Of two chained handlers the first may end first: the other is still called, and the last one restores the signal."""
    received: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    first = handle_signals(lambda *_: received.append("first"), signal.SIGINT, chain=True)
    second = handle_signals(lambda *_: received.append("second"), signal.SIGINT, chain=True)
    are_installed = [first.__enter__(), second.__enter__()]
    signal.raise_signal(signal.SIGINT)
    first.__exit__(None, None, None)
    signal.raise_signal(signal.SIGINT)
    second.__exit__(None, None, None)

    assert ([True, True], ["second", "first", "second"]) == (are_installed, received)
    assert before is signal.getsignal(signal.SIGINT)


def test_an_exclusive_handler_replaces_earlier_ones() -> None:
    """Only the innermost handler is called, and the outer one again afterwards."""
    received: list[str] = []
    with handle_signals(lambda *_: received.append("outer"), *STOP_SIGNALS):
        with handle_signals(lambda *_: received.append("inner"), *STOP_SIGNALS):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "outer"] == received


def test_a_foreign_handler_is_kept() -> None:
    """A handler that other code installs is replaced by later blocks only, and not removed by earlier ones."""
    received: list[str] = []
    with handle_signals(lambda *_: received.append("outer"), signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: received.append("theirs"))
        foreign = signal.getsignal(signal.SIGTERM)
        with handle_signals(lambda *_: received.append("inner"), signal.SIGTERM):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert ["inner", "theirs"] == received
    assert foreign is signal.getsignal(signal.SIGTERM)


async def test_a_call_ends_with_a_signal() -> None:
    """A call that would never return is cancelled by the signal; one that returns before it is not."""

    async def sleep() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    before = signal.getsignal(signal.SIGINT)

    assert not await until_signal(sleep, signal.SIGINT)
    assert await until_signal(trio.lowlevel.checkpoint, signal.SIGINT)
    assert before is signal.getsignal(signal.SIGINT)


async def test_an_ignored_signal_ends_nothing() -> None:
    """Under `nohup`, or in the background of a shell, an ignored signal does not end a call."""
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
    """A handler that is a function."""
    raise KeyboardInterrupt


def caught(call: Callable[[], object]) -> BaseException:
    """Return what a call raises."""
    try:
        call()
    except BaseException as exc:  # noqa: BLE001  # it is what is tested
        return exc
    raise AssertionError


def raise_another() -> None:
    """Replace a KeyboardInterrupt by another one."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("anew") from None


@pytest.mark.parametrize("handler", [interrupted, Handler(), partial(interrupted, 1)])
def test_keyboard_interrupts_of_signals_are_recognized(handler: Callable[..., None]) -> None:
    """A KeyboardInterrupt of a handler is recognized, even re-raised or in a group; one that code raises itself is not."""
    signal.signal(signal.SIGINT, handler)
    real = caught(lambda: signal.raise_signal(signal.SIGINT))
    own = caught(interrupted) if isinstance(handler, Handler) else KeyboardInterrupt()

    assert is_from_signal(real)
    assert is_from_signal(caught(raise_another))
    assert is_from_signal(BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [real])]))
    assert not is_from_signal(BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]))
    assert not is_from_signal(own)
    assert not is_from_signal(ValueError())


def test_an_installed_handler_may_raise_keyboard_interrupt() -> None:
    """A KeyboardInterrupt of a handler that was installed here is recognized."""
    with handle_signals(interrupted, signal.SIGTERM):
        real = caught(lambda: signal.raise_signal(signal.SIGTERM))
        signal.signal(signal.SIGINT, signal.SIG_IGN)

        assert is_from_signal(real)
        assert not is_from_signal(KeyboardInterrupt())


def test_with_the_default_handler_every_keyboard_interrupt_counts() -> None:
    """Python's default handler leaves no trace, so in the main thread every KeyboardInterrupt counts as a signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(is_from_signal(KeyboardInterrupt())))
    thread.start()
    thread.join()

    assert is_from_signal(KeyboardInterrupt())
    assert [False] == elsewhere
