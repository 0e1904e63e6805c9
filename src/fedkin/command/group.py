"""The commands by name. The options of a command are read when it is used: help needs none."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedkin.errors import unknown

# where commands are registered; `Commands` builds the one that is asked for
registered = typer.Typer()


class Commands(TyperGroup):
    """Commands by name; for an unknown one the closest name is suggested."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_infos())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        infos = _infos()
        if cmd_name not in infos:
            raise unknown("command", cmd_name, infos)
        alone = typer.Typer(add_completion=False)
        alone.registered_commands.append(infos[cmd_name])
        return typer.main.get_command(alone)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands as plain text: importing what draws boxes takes longer than all."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        infos = _infos()
        room = formatter.width - 6 - max(map(len, infos))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _sentence(name, info.callback, room)) for name, info in infos.items()]
            )


def _infos() -> dict[str, Any]:
    """What is known of each command: its name, function and settings."""
    infos = registered.registered_commands
    return {info.name or typer.main.get_command_name(_name(info)): info for info in infos}


def _name(info: Any) -> str:
    return str(info.callback.__name__)


def _sentence(name: str, function: Any, room: int) -> str:
    return TyperCommand(name, help=inspect.getdoc(function)).get_short_help_str(room)
