"""A site whose process ends in the middle of a secure sum."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flwr.app import Message

from fedkin.engines.flower.certificates import SiteFiles
from fedkin.engines.flower.records import from_records
from fedkin.runs.sites import client_app, joining
from fedkin.runs.sites.site import SiteWorker
from fedkin.runs.sites.sums import secure_site


def live_until(words: list[str]) -> None:
    """Join as this site, and be killed when asked this stage in this round."""
    server, name, data, home, certs, number, stage = words
    keys = SiteFiles.of(Path(certs))

    def reply(message: Message, site: SiteWorker) -> Message:
        _, facts = from_records(message.content)
        if facts.get("stage") == stage and facts["place"][1] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return client_app.reply(message, site)

    joining.reply = reply
    site = SiteWorker(name, Path(data), Path(home), secure=secure_site(name, keys, None))
    joining.join(joining.JoinOptions(server, site, keys), print)
