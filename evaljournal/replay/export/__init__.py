"""Export formats: one module per format, and `formats` with the table of all.

A format turns a run into bytes, piece by piece, and does nothing else. The same run always gives the same bytes. A name is
imported when it is first used: a run that exports nothing needs one or two of these modules, not all.
"""

from evaljournal.lazy_names import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from evaljournal.replay.export.formats import FORMATS as FORMATS
    from evaljournal.replay.export.formats import Directory as Directory
    from evaljournal.replay.export.formats import File as File
    from evaljournal.replay.export.formats import Format as Format
    from evaljournal.replay.export.formats import TableFile as TableFile
    from evaljournal.replay.export.source import Source as Source
    from evaljournal.replay.export.tables import MissingExtra as MissingExtra
    from evaljournal.replay.export.tables import Rows as Rows

_MODULES = {
    "FORMATS": "formats",
    "Directory": "formats",
    "File": "formats",
    "Format": "formats",
    "MissingExtra": "tables",
    "Rows": "tables",
    "Source": "source",
    "TableFile": "formats",
}
"""Public name → the module that defines it."""

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above

if not TYPE_CHECKING:  # Type checkers report an unknown name themselves.
    __getattr__ = lazy_names(__name__, _MODULES)
