"""The command line: `evaljournal` and `python -m evaljournal`."""

import gc
import signal
import sys


def main() -> None:
    """Run the command line."""
    gc.disable()  # While modules are imported, which leaves no garbage; see `runner.cli`.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends an import without a traceback; see `runner.cli`.
    from evaljournal.runner.cli import main as run_command  # noqa: PLC0415  # only with Ctrl-C as set above

    run_command()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))  # A `rich.py` in the working directory must not hide the package of that name.
    main()
