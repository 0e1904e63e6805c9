"""Log files: plain lines with a level, started anew when they are large, the last few kept."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedkin.errors import FedkinError

LEVELS = ("debug", "info", "warning", "error")
MOST_BYTES, KEPT = 5_000_000, 5
CODES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|.)")
FLOWERS = re.compile(r"^\s*(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b")
NUMBERS = {"WARN": logging.WARNING, **logging.getLevelNamesMapping()}


def check_level(level: str) -> str:
    if level not in LEVELS:
        raise FedkinError(f"there is no log level '{level}': choose from {', '.join(LEVELS)}")
    return level


def plain(line: str) -> str:
    """A line without what terminals act on: colours, titles, other control codes."""
    return "".join(c for c in CODES.sub("", line) if c.isprintable() or c == "\t")


class LogFile:
    """A log file that takes lines from the `least` level on."""

    def __init__(
        self, path: Path, least: str = "info", most: int = MOST_BYTES, kept: int = KEPT
    ) -> None:
        self._handler = RotatingFileHandler(path, maxBytes=most, backupCount=kept, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._logger = logging.Logger(path.name, NUMBERS[check_level(least).upper()])
        self._logger.addHandler(self._handler)

    def write(self, sentence: str, level: str = "info") -> None:
        for line in sentence.splitlines():
            self._logger.log(NUMBERS[level.upper()], "%s", plain(line))

    def pass_on(self, line: str) -> None:
        """A line of Flower's, which says its own level."""
        found = FLOWERS.match(plain(line))
        self.write(line, found[1] if found else "info")

    def close(self) -> None:
        self._handler.close()


class Voice:
    """Says sentences on the screen and keeps them in a log file, with their level."""

    def __init__(self, say: Callable[[str], None], file: LogFile) -> None:
        self.say, self.file = say, file

    def __call__(self, sentence: str) -> None:
        self.say(sentence)
        self.file.write(sentence)

    def warn(self, sentence: str) -> None:
        self.say(sentence)
        self.file.write(sentence, "warning")

    def debug(self, sentence: str) -> None:
        """For the file only, where it wants so much."""
        self.file.write(sentence, "debug")


def warner(say: Callable[[str], None]) -> Callable[[str], None]:
    """How to say that something is wrong."""
    return say.warn if isinstance(say, Voice) else say


def debugger(say: Callable[[str], None]) -> Callable[[str], None]:
    """How to tell of every request; to nobody where there is no log."""
    return say.debug if isinstance(say, Voice) else lambda sentence: None
