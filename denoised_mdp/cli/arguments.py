"""Arguments of the commands: a parser whose errors are one line with a hint, and the types of arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from denoised_mdp.errors import UserError, did_you_mean, nearest
from denoised_mdp.options import CHECKPOINT, DEVICE, convert, limits_of

if typing.TYPE_CHECKING:
    from denoised_mdp.config.schema import Config


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake as a `UserError`.

    examples: lines at the end of the help. long_help: a function that returns the whole help instead. keyed: the
    destination of ``key=value`` words if the command takes them; they may stand before and after its flags.
    """

    def __init__(
        self,
        *,
        examples: Sequence[str] = (),
        long_help: Callable[[], str] | None = None,
        keyed: str | None = None,
        **options: Any,
    ):
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        if options.get("description"):
            options["description"] = textwrap.fill(options["description"], 79)
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.keyed, self.long_help = keyed, long_help

    def format_help(self) -> str:
        return self.long_help() if self.long_help else super().format_help()

    def error(self, message: str):
        raise UserError(f"{message}{' See' if message.endswith('?') else '; see'} '{self.prog} --help'.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = ", ".join(map(str, action.choices))
            near = did_you_mean(value, action.choices, listed=False)
            raise argparse.ArgumentError(action, f"must be one of {names}, not '{value}'{'.' * bool(near)}{near}")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):
        """Parse, and refuse unknown words here, where the command is known."""
        args = list(sys.argv[1:] if args is None else args)
        namespace, extra = super().parse_known_args(args, namespace)
        flag = next((word for word in extra if word.startswith("-") and word != "--"), None)
        if flag is not None:
            raise UserError(self._hint(flag, args))
        if extra and not self.keyed:
            self.error(f"unrecognized arguments: {' '.join(extra)}{self._flag_hint(extra)}")
        if extra:
            setattr(namespace, self.keyed, [*getattr(namespace, self.keyed), *extra])
        return namespace, []

    def _flag_hint(self, words: Sequence[str]) -> str:
        """Return a hint for ``key=value`` words of a command that only takes flags."""
        for word in words:
            name, _, value = word.partition("=")
            if action := self._option_string_actions.get(f"--{name}"):
                return f"; did you mean --{name}{'' if action.nargs == 0 else ' ' + shlex.quote(value or 'VALUE')}?"
        keys = [word.partition("=")[0] for word in words if "=" in word]
        return "; a run keeps its own options" if any(_key(key, exact=True) for key in keys) else ""

    def _hint(self, flag: str, words: Sequence[str]) -> str:
        """Return the error for an unknown flag, with what may have been meant: another flag, or key=value."""
        name, _, value = flag.partition("=")
        flags = [known for known in self._option_string_actions if known.startswith("--")]
        near = nearest(name, flags, cutoff=0.8 if self.keyed else 0.6)
        what, hint = f"unknown flag '{name}'", f" Did you mean '{near}'?" if near else ""
        if self.keyed and (not near or _key(name, exact=True)):
            value = value or next(iter(words[words.index(flag) + 1 :]), "")
            value = "VALUE" if not value or value.startswith("-") or "=" in value else value
            key = _key(name)
            what += ": options are written key=value"
            hint = f" Did you mean {shlex.quote(f'{key}={value}')}?" if key else ""
        return f"{what}.{hint} See '{self.prog} --help'."


def _key(flag: str, exact: bool = False) -> str | None:
    """Return the option or group that a flag names, in full or by its last part, else, unless `exact`, the nearest."""
    from denoised_mdp.config.choices import GROUPS, all_options

    word, keys = flag.lstrip("-").replace("-", "_"), [*GROUPS, *all_options()]
    ends = {key.rpartition(".")[2]: key for key in reversed(keys)}  # of several keys with the same end, the first
    names = ends | {key: key for key in keys}
    near = word if word in names else None if exact else nearest(word, names, cutoff=0.6)
    return names[near] if near else None


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    function: Callable[..., int] | None,
    help: str,
    more: str = ".",
    **options: Any,
) -> Parser:
    """Add a command that calls `function`. Its description is `help` as a sentence, followed by `more`."""
    sentence, escaped = f"{help[0].upper()}{help[1:]}{more}", help.replace("%", "%%")
    parser = commands.add_parser(name, help=escaped, description=sentence, **options)
    parser.set_defaults(function=function)
    return parser


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    return _typed(int, {"low": 1}, True)(text)


def natural(text: str) -> int:
    """Parse a whole number of at least 0, for argparse."""
    return _typed(int, {"low": 0}, True)(text)


def form(pattern: str, allowed: str) -> Callable[[str], str]:
    """Return an argparse type that checks a text against a pattern. allowed: the pattern in words."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not '{text}'")
        return text

    return parse


def expanded(text: str) -> Path:
    """Return a path with ``~`` expanded, which a shell does not do after ``--output=``."""
    return Path(os.path.expanduser(text))


def add_runs(parser: argparse.ArgumentParser, *, several: bool) -> None:
    """Add the argument for the folder of a run, or of several."""
    name = "runs" if several else "run"
    parser.add_argument(
        name,
        type=expanded,
        nargs="+" if several else None,
        metavar="RUN",
        help="folder of a run, e.g. runs/quickstart, or pretrained:cheetah_run_video",
    )
    check_runs(parser, name)


def check_runs(parser: argparse.ArgumentParser, *names: str) -> None:
    """Make a command check that these arguments are runs, before it spends seconds importing PyTorch."""
    function = parser.get_default("function")

    def checked(arguments: argparse.Namespace) -> int:
        from denoised_mdp.run.folder import RunFolder

        for given in (getattr(arguments, name) for name in names):
            for path in given if isinstance(given, list) else [given]:
                RunFolder.existing(path)
        return function(arguments)

    parser.set_defaults(function=checked)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the weights."""
    parser.add_argument(
        "--checkpoint",
        type=form(CHECKPOINT, "a step, or best"),
        metavar="STEP",
        help="of a checkpoint or a snapshot, or best: of those on disk, the one whose evaluation in training returned"
        " most; default: the newest checkpoint",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the weights and the device."""
    add_checkpoint(parser)
    device = form(DEVICE, "auto, cpu, cuda or cuda:N")
    parser.add_argument("--device", type=device, default="auto", help="auto (default), cpu, cuda or cuda:N")


def add_fields(parser: argparse.ArgumentParser, options: type) -> None:
    """Add one flag for each field of a dataclass whose fields are `denoised_mdp.options.option`s."""
    kinds = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        kind, limits, flag = kinds[field.name], limits_of(field), f"--{field.name.replace('_', '-')}"
        help = limits["help"].replace("%", "%%")
        if kind is bool:
            action = argparse.BooleanOptionalAction if field.default else "store_true"
            parser.add_argument(flag, action=action, default=field.default, help=help)
            continue
        number = kind in (int, float, int | None, float | None)
        default = (
            "" if field.default is None else f"; default: {field.default:,}" if number else "; default: %(default)s"
        )
        default = f"; default: {limits['unset']}" if "unset" in limits else default
        parser.add_argument(
            *(["-o"] if field.name == "output" else []),
            flag,
            type=_typed(kind, limits, number),
            default=field.default,
            required=limits.get("required", False),
            choices=limits.get("choices"),
            metavar=None if "choices" in limits else limits.get("metavar", "N" if number else field.name.upper()),
            help=(help + default).removeprefix("; "),
        )


def _typed(kind: Any, limits: Mapping[str, Any], number: bool) -> Callable[[str], Any]:
    """Return an argparse type that parses and checks a field's text."""

    def parse(text: str) -> Any:
        value: Any = text
        if typing.get_origin(kind) is tuple:
            value = [name.strip() for name in text.strip("[] ").split(",") if name.strip()]
        elif kind == bool | None:
            value = {"true": True, "false": False}.get(text, text)
        with contextlib.suppress(ValueError):
            value = float(text) if number else value
            value = int(text) if number else value
        try:
            return convert(value, kind, limits)
        except ValueError as error:
            allowed = str(error).removesuffix(" or null")  # no text stands for null
            raise argparse.ArgumentTypeError(f"must be {allowed}, not '{text}'") from None

    return expanded if kind in (Path, Path | None) else parse


def add_options(
    parser: argparse.ArgumentParser,
    name: str = "overrides",
    nargs: str = "*",
    metavar: str = "key=value",
    help: str = "as for train; a run's folder before them stands for its own options",
) -> None:
    """Add the ``key=value`` words of a `keyed` command."""
    from denoised_mdp.cli.completion import complete

    parser.add_argument(name, nargs=nargs, metavar=metavar, help=help).completer = complete


def check_run(words: Sequence[str], sweeps: bool = False) -> None:
    """Refuse a leading path where no run can continue. sweeps: refuse any run, as several begin or are listed."""
    from denoised_mdp.config.overrides import has_config

    word = words[0] if words else ""
    if has_config(word):
        if sweeps:
            raise UserError(f"A sweep has runs of its own: leave out {word}.")
        return
    if "=" in word or not ("/" in word or os.path.exists(word) or word.startswith("pretrained:")):
        return
    from denoised_mdp.run.folder import RunFolder

    RunFolder.existing(word)  # raises with the reason if there is no run
    raise UserError(f"{word} is an exported agent, which has weights alone: no training continues there.")


def suggest(*commands: Sequence[object]) -> None:
    """Print the next commands on standard error, ready to be copied. A failure to write them is ignored."""
    with contextlib.suppress(OSError):
        for word, command in zip(["next:", *["     "] * len(commands)], commands, strict=False):
            print(f"{word} denoised-mdp {shlex.join(map(str, command))}", file=sys.stderr)


def first_probe(configs: Sequence[Config]) -> str:
    """Return the probe to begin with; factors need ground truth, which only these suites are known to have."""
    return "factors" if all(config.env.suite in ("dmc", "robodesk", "toy") for config in configs) else "health"
