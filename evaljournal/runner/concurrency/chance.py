"""What chance explains: calls that fail singly, while calls that were sent later are accepted.

Some endpoints fail a share of all calls at any load, and some inputs always fail. An outage shows in many calls together. So
failures that later calls did not share are counted here, and with many of them, more in a row are needed for an outage.
"""

from typing import Final

from attrs import define

from evaljournal.runner.concurrency.constants import SEVERAL, WINDOW

_WEIGHT: Final = 1 / (SEVERAL * WINDOW)
"""Weight of one call: the share follows a change within so many calls."""


@define
class Chance:
    """The share of calls that fail for no reason that concerns the others. It fades with every answer."""

    share: float = 0.0

    def count(self, calls: int) -> None:
        """Count calls that failed alone."""
        for _ in range(calls):
            self.share += _WEIGHT * (1 - self.share)

    def fade(self) -> None:
        """Count a call that was answered."""
        self.share -= _WEIGHT * self.share

    def in_a_row(self, count: int) -> float:
        """Return how many in a row are as improbable as `count` are where hardly any call fails."""
        return count / (1 - self.share)
