"""Views of a run as JSON objects."""

from typing import Any, Final, cast

import attrs
from cattrs import Converter

_CONVERTER: Final = Converter()


def view_json(view: attrs.AttrsInstance, *, omit: str = "") -> dict[str, Any]:
    """Return the fields of a view as a JSON object, including those of nested views; the field `omit` is left out."""
    fields = cast("dict[str, Any]", _CONVERTER.unstructure(view))
    fields.pop(omit, None)
    return fields
