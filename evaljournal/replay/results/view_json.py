"""Views of a run as JSON objects."""

from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from cattrs import Converter


@cache
def _converter() -> "Converter":
    from cattrs import Converter  # noqa: PLC0415  # not needed for text

    return Converter()


def view_json(view: object, *, omit: str = "") -> dict[str, Any]:
    """Return the fields of a view as a JSON object, including those of nested views; the field `omit` is left out."""
    fields = cast("dict[str, Any]", _converter().unstructure(view))
    fields.pop(omit, None)
    return fields
