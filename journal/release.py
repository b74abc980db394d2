"""Which release of a package is installed: of this one, to say what has written a journal, and of others."""

from importlib.metadata import PackageNotFoundError, version


def release(package: str = "evaljournal") -> str:
    """Say which release is installed; nothing where none is, and we are run as files."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
