"""The `fedkin` command: parses, calls the library, prints.

What a command needs is imported when it is used: importing torch takes seconds, and help none.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.command import advise as advise_command
from fedkin.command import newcomers as newcomers_cli
from fedkin.command import reports as results_cli
from fedkin.command import reproduce as papers_cli
from fedkin.command.group import Commands, registered
from fedkin.command.process import importing, run_and_end
from fedkin.command.sites import add_commands
from fedkin.errors import FedkinWarning, as_user_error, visible
from fedkin.version import __version__

# typer's own copy of the class, or click's
UsageError: Any = typer.BadParameter.__bases__[0]
_python_shows = warnings.showwarning


app = typer.Typer(
    cls=Commands,
    help="One model per client, from data that never leave them.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
ANY_KEY = {"allow_extra_args": True, "ignore_unknown_options": True}

Out = Annotated[
    Path | None, typer.Option("--out", help="run folder to make (default: a new one in runs/)")
]
RunPath = Annotated[Path, typer.Argument(help="a run folder")]
Track = Annotated[
    list[str] | None,
    typer.Option(help="also tell every round to tensorboard, mlflow or wandb (may be repeated)"),
]


@registered.command(context_settings=ANY_KEY)
def run(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(help="a method (see `fedkin methods`), mymethod.py:MyMethod or config.toml"),
    ],
    out: Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress display")] = False,
    track: Track = None,
) -> None:
    """Train one model per client with METHOD, or repeat the run of a CONFIG.TOML.

    Every key of a config is an option: --rounds 200 --lr 0.1 --data mnist
    --num-clients 50 --partition dirichlet --alpha 0.3 --model cnn --seed 1.
    `fedkin config METHOD` lists all keys with their meaning and default.

    Examples:
      fedkin run fedavg
      fedkin run scaffold --data mnist --num-clients 100 --fraction 0.1
      fedkin run perm --data patients.csv --client-column site
      fedkin run mymethod.py:MyMethod --model mymodels.py:Net --model.args '{"width": 32}'
      fedkin run runs/fedavg-rotated-digits-001/config.toml --seed 1
    """
    with importing():
        from fedkin.command import runs as commands

    commands.run(what, context.args, out, quiet, track or [])


@registered.command()
def resume(
    run: RunPath,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
    engine: Annotated[
        str | None, typer.Option(help="go on in another engine: embedded, wire or ray")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="engine ray: HOST:PORT of the cluster, or auto")
    ] = None,
    track: Track = None,
) -> None:
    """Continue a stopped or killed run (or comparison) from its last checkpoint, exactly."""
    with importing():
        from fedkin.command import runs as commands
        from fedkin.runs.comparison import PLAN

    if (run / PLAN).exists():
        from fedkin.command.compare import resume as resume_comparison

        resume_comparison(run)
    else:
        given = {"engine": engine, "ray_address": ray_address}
        given = {k: v for k, v in given.items() if v is not None}
        commands.resume(run, quiet, given, track or [])


@registered.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def compare(
    words: Annotated[
        list[str], typer.Argument(help="methods, then config keys as options for all of them")
    ],
) -> None:
    """Run several methods on the same clients and show one table.

    Options after the methods are config keys (see `fedkin run --help`), --seeds N for
    repeats, --sweep KEY=A,B,C for every value of a key, --out FOLDER, --latex for the table
    as table.tex, and --track NAME (tensorboard, mlflow, wandb). The repeats and sweeps of a
    method are computed together. With --jobs 2 two processes work at a time,
    each on one method or on half of its runs (worth it for small models).
    `fedkin resume FOLDER` continues a comparison that was stopped.

    Example: fedkin compare local fedavg perm --seeds 5 --sweep lr=0.03,0.1 --rounds 50
    """
    with importing():
        from fedkin.command.compare import compare as run_all

    run_all(words)


@registered.command("methods")
def list_methods() -> None:
    """List the methods by name, also those of other installed packages."""
    with importing():
        from fedkin.command.screen import console, plain_table
        from fedkin.methods.registry import all_methods, get_method, of_packages

    classes = all_methods() | {name: get_method(name) for name in of_packages()}
    rows = [[name, (cls.__doc__ or "-").strip().splitlines()[0]] for name, cls in classes.items()]
    console.print(plain_table(("name", "what it is"), rows))


@registered.command("check")
def check_command(
    method: Annotated[str, typer.Argument(help="a method's name, or mymethod.py:MyMethod")],
) -> None:
    """Check that a method keeps what all methods promise, on small problems.

    It must run on every kind of model, repeat itself to the bit, resume exactly, survive lost
    clients, count its bytes, and more. What fails is told in a sentence, and the exit code is 1.

    Example: fedkin check mymethod.py:MyMethod
    """
    from fedkin.command.check import check

    check(method)


@registered.command()
def config(method: Annotated[str, typer.Argument(help="a method")]) -> None:
    """Print a commented config file for METHOD with every key and its default."""
    with importing():
        from fedkin.command.template import template

    sys.stdout.write(template(method))


@registered.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="where to look")] = Path("runs"),
    csv: Annotated[Path | None, typer.Option(help="write the table to this csv file")] = None,
) -> None:
    """List run folders with their result."""
    from fedkin.command.looking import list_runs as show_runs

    show_runs(folder, csv)


@registered.command(context_settings=ANY_KEY)
def partition(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="a data set or file")],
    plot: Annotated[Path | None, typer.Option(help="draw classes per client to this file")] = None,
    describe: Annotated[
        bool, typer.Option(help="print what each column was taken for, and sizes per client")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the split")] = 0,
    csv: Annotated[Path | None, typer.Option(help="write the table to this csv file")] = None,
) -> None:
    """Show how a data set is partitioned into clients.

    Example: fedkin partition digits --alpha 0.1 --num-clients 20 --plot split.png
    """
    from fedkin.command import looking
    from fedkin.runs.options import parse

    values = parse("local", ["--data", data, *context.args])
    looking.partition(values, plot, describe, seed, csv)


@registered.command("doctor")
def examine(
    data_dir: Annotated[str | None, typer.Option(help="a folder of data sets to look in")] = None,
) -> None:
    """Check this installation: versions, cores, data sets, extras, and a short training.

    For each missing thing one sentence says what to do. The exit code is 0 unless something
    essential is broken.
    """
    from fedkin.command.doctor import doctor

    doctor(data_dir)


advise_command.add_commands(registered, ANY_KEY)
newcomers_cli.add_commands(registered)
add_commands(registered)
results_cli.add_commands(registered)
papers_cli.add_commands(registered)


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def start() -> None:
    """The `fedkin` command in a process of its own."""
    run_and_end(main)


def main() -> None:
    """Run the command; a user's error ends with one sentence and exit code 2 (3: diverged)."""
    words = sys.argv[1:] or ["--help"]
    _noted.clear()
    warnings.showwarning = _show  # type: ignore[assignment]
    try:
        sys.exit(app(words, prog_name="fedkin", standalone_mode=False) or 0)
    except UsageError as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "fedkin"
        fail(f"{_one_line(error.format_message())}; see `{place} --help`", 2)
    except (KeyboardInterrupt, typer.Abort):
        fail("stopped", 130)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        sentence = as_user_error(error)
        if sentence is None:
            raise
        fail(_one_line(str(sentence)), sentence.exit_code)


# what was noted so far, without its numbers: runs side by side have much the same to say
_noted: set[str] = set()


def _show(message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Our own warnings as a line for the user, once; others as Python shows them."""
    if issubclass(category, FedkinWarning):
        from fedkin.command.screen import say

        kind = re.sub(r"\d[\d.e+-]*", "#", str(message))
        if kind not in _noted:
            _noted.add(kind)
            say(f"note: {message}")
    else:
        _python_shows(message, category, *where)


def _one_line(text: str) -> str:
    return " ".join(visible(text).split()).rstrip(".")


def fail(sentence: str, code: int) -> None:
    print(f"fedkin: {sentence}", file=sys.stderr)
    sys.exit(code)
