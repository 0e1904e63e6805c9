"""What is imported when: torch and what draws take seconds, so only when they are used."""

import subprocess
import sys

import pytest

import fedkin

HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "flwr", "ray")
LOOK = "print(*(name for name in {names!r} if name in sys.modules), file=sys.stderr)"


def imported(code: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of the packages a fresh interpreter has imported after running some code."""
    whole = f"import sys, atexit\natexit.register(lambda: {LOOK.format(names=names)})\n{code}"
    ended = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.split()


@pytest.mark.parametrize(
    "code",
    [
        "import fedkin; fedkin.__version__, fedkin.FedkinError",
        "sys.argv = ['fedkin', '--help']; from fedkin.command.cli import main; main()",
        "sys.argv = ['fedkin', 'run', '--help']; from fedkin.command.cli import main; main()",
        "sys.argv = ['fedkin', 'join', '--help']; from fedkin.command.cli import main; main()",
        "sys.argv = ['fedkin', '--version']; from fedkin.command.cli import main; main()",
    ],
)
def test_help_needs_nothing_heavy(code: str) -> None:
    assert imported(code) == []


def test_training_needs_nothing_that_draws_or_tests() -> None:
    code = "import fedkin; fedkin.train, fedkin.load, fedkin.methods.FedAvg"
    assert imported(code, ("matplotlib", "sklearn", "scipy.stats", "scipy.optimize")) == []


def test_lists_of_methods_need_no_tables_or_statistics() -> None:
    code = "sys.argv = ['fedkin', 'methods']; from fedkin.command.cli import main; main()"
    assert imported(code, ("pandas", "scipy", "sklearn", "matplotlib", "PIL")) == []


def test_a_command_ends_with_its_code_and_all_that_was_to_be_told() -> None:
    code = (
        "import atexit\nfrom fedkin.command.process import run_and_end\n"
        "atexit.register(print, 'told at the end')\n"
        "def command():\n    print('said')\n    raise SystemExit(3)\nrun_and_end(command)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (3, "said\ntold at the end\n")


def test_every_public_name_is_there() -> None:
    for name in fedkin.__all__:
        assert getattr(fedkin, name) is getattr(fedkin, name)
        assert name in dir(fedkin)
    assert fedkin.core.problem.Problem is fedkin.Problem
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedkin.trian
