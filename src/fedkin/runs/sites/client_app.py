"""The ClientApp: passes a message to the site's worker and returns its answer.

Which site this is comes from the SuperNode's own configuration (`--node-config`): name,
data, home and, where wanted, device. Nothing of it can be set by the server.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkin.engines.flower.records import from_records, to_records
from fedkin.errors import FedkinError
from fedkin.runs.sites.site import SiteWorker

app = ClientApp()


@app.query()
@app.train()
def answer(message: Message, context: Context) -> Message:
    about = {"device": "cpu", **context.node_config}
    missing = {"name", "data", "home"} - set(about)
    if missing:
        raise FedkinError(f"the SuperNode's --node-config does not give {', '.join(missing)}")
    return reply(message, worker(*(str(about[k]) for k in ("name", "data", "home", "device"))))


@lru_cache(maxsize=1)
def worker(name: str, data: str, home: str, device: str) -> SiteWorker:
    """The site of this process: made for its first message, reused for the others."""
    return SiteWorker(name, Path(data), Path(home), device)


def reply(message: Message, site: SiteWorker) -> Message:
    """The site's answer, or its reason for giving none."""
    try:
        tensors, facts = site.answer(*from_records(message.content))
    except FedkinError as error:
        if site.refused is None:
            site.say(f"a request could not be answered: {error}")
        # an error about data may quote values, which must not reach the server
        reason = (
            str(error)
            if site.refused is None
            else "its data do not fit; details are on the site's screen"
        )
        tensors, facts = {}, {"error": reason, "name": site.name}
    return Message(to_records(facts, reply=tensors), reply_to=message)
