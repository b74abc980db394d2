"""The command line: `evaljournal` and `python -m evaljournal`."""

import sys


def main() -> None:
    """Check that no other packages hide ours, then run the command line."""
    try:
        import evaljournal._own_packages  # noqa: PLC0415  # inside the `try`
    except ImportError as exc:
        sys.stderr.write(f"Error: {exc}\n")
        sys.exit(2)
    from runner.cli import main as run_command  # noqa: PLC0415  # only after the check

    run_command()


if __name__ == "__main__":
    main()
