"""A journal compared with a plain list, through any sequence of sessions, kills, power failures and flipped bits."""

import random
from pathlib import Path

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evaljournal.journal import Event, read, verify, writing
from evaljournal.journal.disk import segments
from evaljournal.journal.errors import JournalDamaged, JournalError
from evaljournal.journal.events import JournalRecovered, SegmentOpened, SegmentSealed
from tests.journal.disk import PowerFailure, SimulatedDisk, power_failure
from tests.journal.samples import RUN, enqueued, fake_clock, inline, session, started

PATH = Path("/run")
JOURNAL_EVENTS = (SegmentOpened, SegmentSealed, JournalRecovered)
"""Records that the journal writes about its own files; they are not in the list."""


class JournalAndList(RuleBasedStateMachine):
    """Events are appended to both; confirmed events must be read back as they are in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.events: list[Event] = []
        self.confirmed = 0
        """How many of the events are confirmed."""
        self.sessions = 0
        self.trials = 0

    def write(self, *, new: bool, events: list[Event], confirm: int, end: str) -> None:
        """Open the journal, append, confirm some events, and close it, kill the process or simulate a power failure."""

        async def main() -> None:
            async with writing(
                PATH, new=new, run=RUN, clock=fake_clock(), files=self.disk, in_thread=inline, roll_at=1500
            ) as journal:
                for number, event in enumerate(events):
                    record = journal.append(event)
                    self.events.append(event)
                    if number < confirm:
                        await journal.wait_durable(record.seq)
                        self.confirmed = len(self.events)
                if end != "close":
                    self.disk.on_call = power_failure()
                    raise PowerFailure
            self.confirmed = len(self.events)

        try:
            trio.run(main)
        except (PowerFailure, BaseExceptionGroup):
            assert end != "close"
        self.disk.on_call = lambda _: None

    def read(self) -> list[Event]:
        return [record.event for record in read(PATH, files=self.disk) if not isinstance(record.event, JOURNAL_EVENTS)]

    @initialize()
    def start(self) -> None:
        """Start the run, and close it."""
        self.sessions = 1
        self.write(new=True, events=[started(), session(1)], confirm=2, end="close")

    @rule(
        count=st.integers(0, 12),
        confirm=st.integers(0, 12),
        end=st.sampled_from(["close", "kill", "power failure"]),
        seed=st.integers(),
    )
    def resume(self, count: int, confirm: int, end: str, seed: int) -> None:
        """Open the journal again, append, and close it, kill the process or simulate a power failure."""
        self.sessions += 1
        names = [f"trial-{number}" for number in range(self.trials, self.trials + count)]
        self.trials += count
        self.write(new=False, events=[session(self.sessions), *map(enqueued, names)], confirm=confirm, end=end)
        if end == "kill":
            self.disk = self.disk.after_kill()
        elif end == "power failure":
            self.disk = self.disk.after_power_failure(random.Random(seed))
        present = self.read()
        assert present == self.events[: len(present)]
        assert len(present) >= self.confirmed
        self.events = present
        self.confirmed = len(present)  # Opening confirms every record that is found.
        self.sessions = sum(type(event).__name__ == "SessionStarted" for event in present)

    @precondition(lambda self: len(self.disk.list_directory(str(PATH))) > 2)
    @rule(data=st.data())
    def flip(self, data: st.DataObject) -> None:
        """Flip a bit in a segment before the last: the journal is rejected, and readable once the bit is restored."""
        name = f"{PATH}/{segments.name(1)}"
        content = self.disk.read(name).read()
        if not self.disk.size(f"{PATH}/{segments.name(2)}"):
            return
        byte = data.draw(st.integers(0, len(content) - 1))
        changed = bytearray(content)
        changed[byte] ^= 1 << data.draw(st.integers(0, 7))
        self.disk.add_file(name, bytes(changed))
        try:
            list(read(PATH, files=self.disk))
            raise AssertionError(f"byte {byte} of {len(content)} was flipped, undetected")
        except JournalDamaged:
            pass
        except JournalError:
            assert byte < content.index(b"\n"), "only the first line has the format"
        self.disk.add_file(name, content)

    @invariant()
    def journal_equals_list(self) -> None:
        """The journal always verifies and has the events of the list."""
        if self.sessions:
            assert self.events == self.read()
            assert verify(PATH, files=self.disk).ok


JournalAndList.TestCase.settings = settings(stateful_step_count=12)
TestJournalBesideList = JournalAndList.TestCase
