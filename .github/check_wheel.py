"""Check the packages of a wheel: `python .github/check_wheel.py dist/evaljournal-0.1.0-py3-none-any.whl`."""  # noqa: INP001  # a script

import sys
import zipfile

EXPECTED = {"evaljournal"}


def main() -> None:
    """Exit with a message if the wheel installs anything but the package `evaljournal`."""
    names = zipfile.ZipFile(sys.argv[1]).namelist()
    top_level = {name.partition("/")[0].removesuffix(".py") for name in names}
    packages = {name for name in top_level if not name.endswith(".dist-info")}
    if packages != EXPECTED:
        sys.exit(f"{sys.argv[1]}: top level is {sorted(packages)}, expected {sorted(EXPECTED)}")
    if missing := {f"evaljournal/{name}/__init__.py" for name in ("journal", "replay", "runner")} - {*names}:
        sys.exit(f"{sys.argv[1]}: no {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
