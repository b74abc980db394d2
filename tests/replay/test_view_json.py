"""Views as JSON: every view inside a view becomes an object, too."""

import attrs
import orjson
import pytest

from evaljournal.replay.results.summary import Adoption, summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.state.run import RunState


def test_views_inside_a_view() -> None:
    """An annotation that names a class in quotes would leave its objects as they are."""
    changed = attrs.evolve(summarize(RunState()), adopted=[Adoption(2, ["task"])])
    fields = orjson.loads(orjson.dumps(view_json(changed)))

    assert [{"session": 2, "changes": ["task"]}] == fields["adopted"]


@pytest.mark.parametrize("name", ["outcome", "crashes"])
def test_a_field_can_be_omitted(name: str) -> None:
    """The field is in the object, unless it is omitted."""
    summary = summarize(RunState())

    assert name in view_json(summary)
    assert name not in view_json(summary, omit=name)
