"""The command line: `evaljournal` and `python -m evaljournal`."""

import signal
import sys


def main() -> None:
    """Check that no other packages hide ours, then run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends an import without a traceback; see `runner.cli`.
    try:
        import evaljournal._own_packages  # noqa: PLC0415  # inside the `try`
    except ImportError as exc:
        sys.stderr.write(f"Error: {exc}\n")
        sys.exit(2)
    from runner.cli import main as run_command  # noqa: PLC0415  # only after the check

    run_command()


if __name__ == "__main__":
    main()
