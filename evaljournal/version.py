"""The installed version of evaljournal and of other packages."""

from importlib.metadata import PackageNotFoundError, version


def installed_version(package: str = "evaljournal") -> str:
    """Return the installed version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
