"""Which client a name or a number means. Nothing is ever silently somebody else's."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.errors import FedkinError

# names that are listed where none is close
LISTED = 8
LONGEST_NAME = 24  # letters of a name that are shown


def client_position(names: Sequence[str], name: str) -> int:
    """The place of the client with this name; digits are a name like any other."""
    found = [place for place, own in enumerate(names) if own == name]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(map(str, found[:LISTED]))
        raise FedkinError(
            f"{len(found)} clients are named '{name}': choose by place ({places}) with "
            "--client-number"
        )
    near = nearest(names, name)
    raise FedkinError(f"there is no client '{name}' ({near}); --client-number chooses by place")


def client_at(names: Sequence[str], number: int) -> int:
    """A place among all clients, checked."""
    if not 0 <= number < len(names):
        raise FedkinError(
            f"there is no client number {number}: places are 0 to {len(names) - 1}; "
            "--client chooses by name"
        )
    return number


def client_number(names: Sequence[str], client: int | str) -> int:
    """The place of the client that `client` means.

    Text is a name. A whole number is the client of that name, if there is one (7 is the
    client '7'); if no client's name is a number it is a place, from 0; otherwise it is
    refused: among clients named 1, 2, 4 there is no client 3.
    """
    if isinstance(client, str) or str(client) in names:
        return client_position(names, str(client))
    if any(map(is_number, names)):
        raise FedkinError(
            f"there is no client '{client}' ({nearest(names, str(client))}); names are numbers "
            "here, so a number is a name"
        )
    return client_at(names, client)


def is_number(name: str) -> bool:
    """Whether a name is written in digits, and not so long that it cannot be meant as a number."""
    return name.isdecimal() and len(name) < 20


def nearest(names: Sequence[str], name: str) -> str:
    """`the nearest names are '53' and '55'`, or some of the names where none is close."""
    from difflib import get_close_matches

    if is_number(name):
        numbers = sorted({n for n in names if is_number(n)}, key=lambda n: abs(int(n) - int(name)))
        near = sorted(numbers[:2], key=int)
    else:
        near = get_close_matches(name, sorted(set(names)), n=3, cutoff=0.6)
    if near:
        listed = " and ".join(f"'{n}'" for n in near)
        return f"the nearest name{'s are' if len(near) > 1 else ' is'} {listed}"
    more = ", ..." if len(names) > LISTED else ""
    return f"clients are: {', '.join(names[:LISTED])}{more}"


def cut(name: str, length: int = LONGEST_NAME) -> str:
    """A name that fits, its middle left out if it must be."""
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[: length - 1 - half]}…{name[-half:]}"
