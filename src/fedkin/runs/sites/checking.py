"""`fedkin join --check`, and whether this site's people agree to a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fedkin.data.config import SUFFIXES, DataConfig
from fedkin.data.tables import read_frame
from fedkin.errors import FedkinError, unknown
from fedkin.runs.sites.announcement import Announcement, announce, in_words
from fedkin.runs.sites.plan import read_serve_config
from fedkin.runs.sites.policy import TABLES, SitePolicy
from fedkin.runs.sites.site import SiteWorker


def limits(path: Path | None, columns: str, target: str) -> SitePolicy:
    """The site's limits: its policy file, with what its own command names in their place."""
    found = SitePolicy.read(path) if path else SitePolicy()
    named = [column.strip() for column in columns.split(",") if column.strip()]
    given = ({"columns": named} if named else {}) | ({"target": target} if target else {})
    return found.model_copy(update=given)


def agree_by(
    policy: SitePolicy, data: Path, yes: bool, say: Callable[[str], None]
) -> Callable[[list[str]], bool]:
    """How a site's people agree: by their limits alone (`yes`), or when asked at the terminal."""
    table = data.suffix.lower() in TABLES
    if yes and table and (policy.columns is None or policy.target is None):
        raise FedkinError(
            "without being asked this site needs to know what may be used: name it with "
            "--columns age,bmi --target outcome, or in a --policy file"
        )
    if not yes and not sys.stdin.isatty():
        raise FedkinError(
            "nobody can be asked here whether this site takes part: start it at a terminal, or "
            "with --yes to take part in all that is within its limits"
        )

    def agree(words: list[str]) -> bool:
        for line in words:
            say(line)
        return yes or input("take part? [y/N] ").strip().lower() in ("y", "yes")

    return agree


def report(name: str, data: Path, policy: SitePolicy, config: Path | None) -> list[str]:
    """The limits, what the file has, and whether a server's config would be answered."""
    lines = [
        "# limits of this site (a --policy file may state them)",
        *policy.to_toml().splitlines(),
    ]
    kind = SUFFIXES.get(data.suffix.lower())
    if data.suffix.lower() in TABLES:
        frame = read_frame(DataConfig(name=kind, path=str(data)))
        for column in (*(policy.columns or ()), *([policy.target] if policy.target else ())):
            if column not in frame.columns:
                raise FedkinError(f"{unknown('column', column, map(str, frame.columns))} in {data}")
        lines += [f"# {data.name}: {len(frame)} rows, columns {', '.join(map(str, frame.columns))}"]
    if config is None:
        return lines
    served, agreement = read_serve_config(config)
    setup = announce(served, agreement.model_dump())
    announced = Announcement.read(setup)
    policy.check_setup(announced.checked(), data)
    words = in_words(
        name, str(config), config.stem, announced, served.make_method(), policy,
        data.suffix.lower() in TABLES,
    )  # fmt: skip
    tried = SiteWorker.try_out(name, data, setup, policy)
    told = ", ".join(f"{key} {value}" for key, value in tried.items())
    return [*lines, *words, f"this site would take part; it would tell: {told}"]
