"""docs/concurrency.md is true: its pictures can be drawn again, and its texts are those of the screen."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET

import pytest

from evaljournal.replay.runs.idle import IdleReason, limit_text, pace_text, pause_text
from evaljournal.replay.state.pauses import PAUSE_TEXTS, Pause

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "concurrency.md").read_text()
PICTURES = re.findall(r"\]\((concurrency-[a-z0-9-]+\.svg)\)", PAGE)


def test_the_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    """The script draws exactly the pictures on the page, as well-formed SVG that loads nothing and runs nothing."""
    subprocess.run([sys.executable, "docs/concurrency_pictures.py", str(tmp_path)], cwd=ROOT, check=True, timeout=60)

    assert sorted(PICTURES) == sorted(file.name for file in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        tags = {element.tag.rpartition("}")[2] for element in ET.parse(file).iter()}  # noqa: S314  # our own file
        assert {"svg", "title", "rect", "text", "polyline", "polygon"} == tags


def test_the_pictures_exist() -> None:
    """Every picture of the page is in the repository."""
    assert 3 == len(PICTURES)
    assert [] == [name for name in PICTURES if not (ROOT / "docs" / name).exists()]


@pytest.mark.parametrize(
    "text",
    [
        pace_text(4.2),
        limit_text(16, 100, "429 at 17 in flight"),
        pause_text(Pause(12.0, "retry_after"), 0.0),
        pause_text(Pause(0.8, "rate_limited"), 0.0),
        pause_text(Pause(3.0, "unavailable"), 0.0),
        PAUSE_TEXTS["no_response"],
        PAUSE_TEXTS["all_rate_limited"],
    ],
)
def test_the_page_has_the_texts_of_the_screen(text: str) -> None:
    """The screen lines on the page are those that the screen shows."""
    assert f"`{text}`" in PAGE


def test_the_page_names_every_reason() -> None:
    """Every reason that `status --json` can have is in the table."""
    assert [] == [reason for reason in get_args(IdleReason) if f"| `{reason}` |" not in PAGE]
