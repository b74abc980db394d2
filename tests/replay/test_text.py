"""Values, numbers and times as short text."""

from pathlib import Path

from evaljournal.journal import Blob
from evaljournal.replay.render.phrases import score_text
from evaljournal.replay.results.summary import score_of
from evaljournal.replay.state.tally import Tally
from evaljournal.replay.text import cell_width, digits, duration, number, pad, printable, resume_text, shorten, wrap_cells


def test_durations() -> None:
    """Short durations have fractions of a second, long ones minutes or hours."""
    text = [duration(seconds) for seconds in (-1, 0.0123, 0.0996, 0.5, 9.96, 12.4, 59.6, 200, 7500, 9_000_000)]

    assert ["0 s", "12 ms", "100 ms", "0.5 s", "10 s", "12 s", "1 min", "3 min 20 s", "2 h 5 min", "2,500 h"] == text


def test_numbers() -> None:
    """Integers are shown in full, other numbers with four significant digits."""
    assert ["1,234,567", "0.01235", "2", "12,346"] == [number(value) for value in (1_234_567, 0.0123456, 2.0, 12345.67)]


def test_large_numbers() -> None:
    """Large means are shown in full; very large ones with an exponent."""
    tally = Tally()
    for length in (12_000, 13_000.5):
        tally.add(length)

    assert score_text(score_of(tally)).startswith("12,500  mean of 2 scored")
    assert ["999", "1,000", "-1,235", "0.00123", "1.2e+15"] == [
        digits(n, 3) for n in (999.1, 999.9, -1234.5678, 0.00123, 1.2e15)
    ]


def test_printable_text() -> None:
    """Long values are truncated, blobs are shown by size, control characters are escaped."""
    blob = Blob(sha256="ab", bytes=300_000, path=Path("x"))

    assert "(300,000 bytes in a blob)" == printable(blob)
    assert '{"a":[1,2]}' == printable({"a": [1, 2]})
    assert "\\x1b[31m\\u202ex" == printable("\x1b[31m\u202ex")
    assert "aaaa…" == printable("a" * 9, 5)


def test_shortened_text() -> None:
    """A text that is too long lacks its middle; without room, only the mark of the omission is left."""
    assert ["…", "…", "…", "a…b", "a" * 40 + "b" * 40] == [shorten("a" * 40 + "b" * 40, width) for width in (-25, 0, 1, 3, 80)]


def test_wide_characters() -> None:
    """Texts are padded, shortened and wrapped by columns of a terminal: wide characters take two, combining ones none."""
    assert [4, 8, 4, 2, 3] == [cell_width(text) for text in ("Lima", "東京都庁", "Kö\u0308ln", "🗼", "a→b")]
    assert ["東京  |", "Lima  |"] == [f"{pad(text, 6)}|" for text in ("東京", "Lima")]
    assert ["東京都庁舎", "東京…舎", "東…", "…"] == [shorten("東京都庁舎", width) for width in (10, 8, 4, 2)]
    assert ["東京", "都庁", "舎"] == wrap_cells("東京都庁舎", 5)
    assert ["the", "city"] == wrap_cells("the city", 5)


def test_long_wide_texts_are_wrapped_in_linear_time() -> None:
    """A long text is not read again for each line; with a quadratic rule, this would take minutes."""
    assert ["東" * 10] * 20_000 == wrap_cells("東" * 200_000, 20)


def test_when_to_resume() -> None:
    """The time is rounded up to a minute in UTC, with a date from 24 hours on; a time in the far future is not shown."""
    wall = 1_794_700_800.0 + 14 * 3600 + 6 * 60  # 2026-11-15 14:06 UTC

    assert "resume after 00:00 UTC (9 h 54 min)" == resume_text(9 * 3600 + 54 * 60, wall)
    assert "resume after 14:07 UTC (12 s)" == resume_text(12.0, wall)
    assert "resume after 2026-12-01 00:00 UTC (369 h 54 min)" == resume_text(15 * 86400 + 9 * 3600 + 54 * 60, wall)
    assert ["", "", ""] == [resume_text(seconds, wall) for seconds in (1e12, -1.0, float("nan"))]
