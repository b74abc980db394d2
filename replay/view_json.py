"""Views of a run as JSON objects."""

from typing import Any, Final, cast

import attrs
from cattrs import Converter

_CONVERTER: Final = Converter()


def view_json(view: attrs.AttrsInstance, *, without: str = "") -> dict[str, Any]:
    """Return the fields of a view as a JSON object, those of views inside it too; the field `without` is omitted."""
    members = cast("dict[str, Any]", _CONVERTER.unstructure(view))
    members.pop(without, None)
    return members
