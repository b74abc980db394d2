"""Server-sent events in any chunks and with any line breaks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from evaljournal.replay.provider.server_sent_events import EventParser, parse_events

LINES = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=5)
EVENTS = st.lists(st.tuples(st.sampled_from(["", "ping", "error"]), st.lists(LINES, min_size=1, max_size=3)), max_size=4)


@given(events=EVENTS, data=st.data(), has_mark=st.booleans(), has_end=st.booleans())
def test_events_arrive_in_any_parts(
    events: list[tuple[str, list[str]]],
    data: st.DataObject,
    has_mark: bool,  # noqa: FBT001  # a drawn value
    has_end: bool,  # noqa: FBT001  # a drawn value
) -> None:
    """Line breaks of any kind, a byte order mark, comments, and the boundaries of the chunks do not change the events."""
    text = ""
    for event, values in events:
        line_end = data.draw(st.sampled_from(["\n", "\r", "\r\n"]))
        lines = [": comment", *([f"event: {event}"] if event else []), *(f"data: {value}" for value in values), ""]
        text += "".join(line + line_end for line in lines)
    text = ("\ufeff" if has_mark else "") + (text if has_end else text.rstrip("\r\n"))
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=5))})
    parser = EventParser()
    received = [event for start, end in pairwise(borders) for event in parser.feed(text[start:end])]

    assert [(event, "\n".join(values)) for event, values in events] == [*received, *parser.end()] == list(parse_events(text))
