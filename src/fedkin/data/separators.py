"""How the values of a CSV file are set apart: by commas, semicolons or tabs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OTHERS = (";", "\t")
LOOKED_AT = 1000  # rows
COMMA_NUMBER = r"\s*[+-]?\d+,\d+\s*"
POINT_NUMBER = r"\s*[+-]?\d*\.\d+\s*"


def header(path: Path, sep: str) -> list[str]:
    """The names in a file's first line, without its columns, of which there may be very many."""
    import pandas as pd

    names = list[str]()

    def see(name: Any) -> bool:
        names.append(str(name))
        return False

    pd.read_csv(path, nrows=0, sep=sep, usecols=see)
    return names


def separators(path: Path) -> dict[str, Any]:
    """pandas' options for a file: the separator if its first line has no comma and another one,
    and then decimal commas if its first rows have such numbers and none with a point."""
    import pandas as pd

    first = header(path, ",")
    alone = len(set(first)) == 1
    found = next((sep for sep in OTHERS if alone and sep in first[0]), None)
    if found is None:
        return {}
    rows = pd.read_csv(path, sep=found, nrows=LOOKED_AT, dtype=str, low_memory=False)
    values = pd.Series(rows.to_numpy().ravel()).dropna().astype(str)
    commas = values.str.fullmatch(COMMA_NUMBER).any()
    points = values.str.fullmatch(POINT_NUMBER).any()
    return {"sep": found, "decimal": ","} if commas and not points else {"sep": found}
