"""What a user sees on an error: one sentence and an exit code."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable
from pathlib import Path


class FedkinError(Exception):
    """An error the user can fix. The message is one sentence: what, where, what to do."""

    exit_code = 2


class DivergedError(FedkinError):
    """Training produced numbers that are not finite."""

    exit_code = 3


class FedkinWarning(UserWarning):
    """Something that a run goes on with and its user should know. One sentence."""


# what most often helps where training diverges; replaced where another cause is known
LOWER_LR = "lower the learning rate"


JOINERS = "\u200c\u200d\u00ad"  # which scripts need, and soft hyphens
LONGEST = 100  # letters of a wrong name that are repeated


def unknown(kind: str, name: object, options: Iterable[str]) -> FedkinError:
    """`unknown method 'pfedm' (did you mean 'pfedme'?)`, or the list when no name is close."""
    from difflib import get_close_matches  # here, as every command imports this file

    names, name = sorted(options), str(name)[:LONGEST]
    written = {option.lower(): option for option in names}
    near = get_close_matches(name.lower(), written, n=1, cutoff=0.6)
    hint = f"did you mean '{written[near[0]]}'?" if near else f"choose from: {', '.join(names)}"
    return FedkinError(f"unknown {kind} '{name}' ({hint})")


def visible(text: str) -> str:
    """Text that shows what it is: without letters that move others, steer a screen or hide.

    These are control characters (but not line ends and tabs), and marks that turn the direction
    of writing or have no width; each becomes \ufffd. Scripts from right to left stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    from unicodedata import category

    return "".join("\ufffd" if _hides(letter, category(letter)) else letter for letter in text)


def _hides(letter: str, kind: str) -> bool:
    if kind == "Cf":
        return letter not in JOINERS
    return kind in ("Cc", "Cs", "Zl", "Zp") and letter not in "\n\t"


def as_user_error(error: Exception) -> FedkinError | None:
    """An error of the system (disk, memory) as a sentence; None for a bug."""
    if isinstance(error, FedkinError):
        return error
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        hint = {
            errno.ENOSPC: "; free some space, or choose another place with --out",
            errno.EROFS: "; choose a folder that can be written with --out",
            errno.EACCES: "; choose a folder that can be written with --out",
        }.get(error.errno or 0, "")
        return FedkinError(f"cannot use{place}: {error.strerror or error}{hint}")
    if isinstance(error, UnicodeEncodeError):
        return FedkinError(f"{error.object!a} contains bytes that are not text: rename it")
    # torch reports its own failed allocations as a RuntimeError
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        reason = (str(error).splitlines() or [""])[0]
        return FedkinError(
            "there is not enough memory for this: lower num_clients, batch_size, or the sizes of "
            f"the data and the model{f' ({reason})' if reason else ''}"
        )
    # torch reports 1e300 in single precision as a RuntimeError, too
    if isinstance(error, OverflowError) or "without overflow" in str(error):
        return FedkinError("a number given is too large for the precision in use")
    return None


def checked_size(path: Path, most: int) -> int:
    """A file's size in bytes, once it is known to be a file, and of at most this size.

    Reading a pipe could wait for ever. A FileNotFoundError if there is none.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "pipe or device"
        raise FedkinError(f"{path} is a {kind}, not a file")
    if found.st_size > most:
        raise FedkinError(f"{path} has {found.st_size} bytes, more than the {most} it may have")
    return found.st_size
