"""The pytest plug-in. Everything but its options is imported only if evaluations are collected."""

from evaljournal.lazy_names import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the options of the command line and of the ini file."""
    group = parser.getgroup("evaljournal")
    group.addoption("--evals", action="store_true", help="Collect evaluations: each trial and each gate is a test.")
    group.addoption(
        "--evals-reuse",
        metavar="RUN",
        help="Score the recorded outputs of RUN, or of each evaluation's newest run below it; no task is called.",
    )
    group.addoption(
        "--evals-replies",
        metavar="RUN",
        action="append",
        help="Answer calls from what RUN, or a file of `evaljournal pack`, has recorded, offline; a call without a reply "
        "fails its test. Repeatable.",
    )
    parser.addini("evaljournal", "Collect evaluations, as --evals does (default: false).", type="bool", default=False)
    parser.addini("evals_strict", "A failing score fails its test (default: false).", type="bool", default=False)


def pytest_configure(config: "pytest.Config") -> None:
    """Register the plug-in that collects evaluations, if that is asked for."""
    if (
        config.getoption("evals")
        or config.getoption("evals_reuse")
        or config.getoption("evals_replies")
        or config.getini("evaljournal")
    ):
        from evaljournal.integrations.pytest.plugin import EvaluationPlugin  # noqa: PLC0415  # it imports the engine

        config.pluginmanager.register(EvaluationPlugin(config), "evaljournal-evaluations")
