"""`python -m fedkin` is the `fedkin` command."""

from fedkin.command.cli import start

start()
