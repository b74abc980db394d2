"""Decorators that add options to commands, and help that lists the options by group."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from evaljournal.runner import scorers
from evaljournal.runner.cli.arguments import F
from evaljournal.runner.cli.options.table import (
    ADVANCED,
    ONLY_VARIANT,
    TABLE,
    Option,
    is_definition,
    is_setting,
    removed_option,
)
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.definition.variants import MAX_UNCONFIRMED

ALL_OPTIONS: Final = "evaljournal.all_options"
"""Key in the context's `meta`: the help shows all options."""


class GroupedOption(click.Option):
    def __init__(self, *arguments: Any, group: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group


def _print_all_options(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.meta[ALL_OPTIONS] = True
        echo(ctx.get_help())
        ctx.exit()


class GroupedCommand(click.Command):
    """A command whose help lists its options by group: those that people use, or all with `--help-all`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        show_all = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _print_all_options}
        self.params.append(GroupedOption(["--help-all"], group="Output", help="Show all options and exit.", **show_all))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """An option that is a key by now is an error that shows how to set the key."""
        optional = {param.opts[0] for param in self.params if isinstance(param, click.Option) and param.flag_value == ""}
        for index, arg in enumerate(args[:-1]):
            if arg in optional and "://" not in args[index + 1]:  # What follows is the evaluation or the run, not a URL.
                args[index] = f"{arg}="
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            option = removed_option(exc.option_name)
            if option is None:
                raise
            example = (option.example or "true").strip('"')
            assignment = f"-s {shlex.quote(f'{option.key}={example}')}"
            raise click.UsageError(
                f"{exc.option_name} is the key {option.key} of the configuration file: {option.in_a_file} in FILE.toml, "
                f"or {assignment}",
                ctx,
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in ("Resume", *TABLE)}
        for param in self.get_params(ctx):
            is_shown = ALL_OPTIONS in ctx.meta or ADVANCED.isdisjoint(param.opts)
            if isinstance(param, click.Option) and is_shown and (record := param.get_help_record(ctx)) is not None:
                groups[getattr(param, "group", "Output")].append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def _complete_scorers(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the built-in scorers; anything else is a file."""
    names = [CompletionItem(name) for name in scorers.NAMES if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def _add_option(option: Option, function: F, group: str, help_: str) -> F:
    arguments: dict[str, Any] = {"help": help_, "multiple": option.multiple, "metavar": option.metavar, "type": option.type}
    if option.metavar is None:
        arguments = {"help": help_, "is_flag": True, "default": None}
    elif option.metavar.startswith("["):
        arguments |= {"is_flag": False, "flag_value": ""}
    elif option.metavar == "SCORER":
        arguments["shell_complete"] = _complete_scorers
    return grouped_option(group, option.spec.split()[0], **arguments)(function)


def _table_options(is_selected: Callable[[Option], bool], *, with_defaults: bool = True) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for group, options in reversed(list(TABLE.items())):
            for option in reversed(options):
                if option.flag and is_selected(option):
                    function = _add_option(option, function, group, option.help if with_defaults else option.text)
        return assignments_option(function)

    return decorate


def grouped_option(group: str, *flags: str, **arguments: Any) -> Callable[[F], F]:
    return click.option(*flags, cls=GroupedOption, group=group, **arguments)


assignments_option = grouped_option(
    "Output",
    "-s",
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the configuration file, such as retry.errors=2; repeatable. docs/configuration.md lists all of them.",
)
config_option = grouped_option(
    "Dataset",
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with these options, and more, as keys; options take precedence. `evaljournal init` writes one.",
)

run_options = _table_options(lambda _: True)
resume_options = _table_options(lambda option: not option.targets or is_setting(option, experiment=False), with_defaults=False)
scorer_options = _table_options(lambda option: option in TABLE["Scoring"] and is_definition(option), with_defaults=False)


def only_variant_option(group: str, text: str) -> Callable[[F], F]:
    return lambda function: _add_option(ONLY_VARIANT, function, group, text)


def leave_option(group: str, how: str = "`resume` collects the results") -> Callable[[F], F]:
    text = f"Submit the batches and exit with code 3 instead of waiting; {how}."
    return grouped_option(group, "--leave", is_flag=True, help=text)


def yes_option(group: str) -> Callable[[F], F]:
    return grouped_option(group, "--yes", is_flag=True, help=f"Run more than {MAX_UNCONFIRMED:,} variants.")


def task_option(group: str) -> Callable[[F], F]:
    text = "New location of the evaluation, if it was moved."
    return grouped_option(group, "--task", "reference", metavar="REFERENCE", help=text)


def trust_option(group: str) -> Callable[[F], F]:
    return grouped_option(
        group, "--trust", is_flag=True, help="Use the file, command or URL that the journal of a foreign run names."
    )
