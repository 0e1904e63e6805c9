"""The ClientApp: passes a message to the site's worker and returns its answer.

Which site this is comes from the SuperNode's own configuration (`--node-config`): name,
data, home and, where wanted, device and policy (a site.toml). Nothing of it can be set by the
server.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedkin.engines.flower.logs import warner
from fedkin.engines.flower.records import from_records, to_records
from fedkin.errors import FedkinError
from fedkin.runs.sites.answering import answered
from fedkin.runs.sites.machine import Machine
from fedkin.runs.sites.policy import SitePolicy
from fedkin.runs.sites.site import SiteWorker

app = ClientApp()


@app.query()
@app.train()
def answer(message: Message, context: Context) -> Message:
    about = {"device": "cpu", **context.node_config}
    missing = {"name", "data", "home"} - set(about)
    if missing:
        raise FedkinError(f"the SuperNode's --node-config does not give {', '.join(missing)}")
    keys = ("name", "data", "home", "device")
    return reply(message, worker(*(str(about[k]) for k in keys), str(about.get("policy", ""))))


@lru_cache(maxsize=1)
def worker(name: str, data: str, home: str, device: str, policy: str) -> SiteWorker:
    """The site of this process: made for its first message, reused for the others."""
    limits = SitePolicy.read(Path(policy)) if policy else None
    return SiteWorker(name, Path(data), Path(home), device, policy=limits)


def reply(message: Message, site: SiteWorker | Machine) -> Message:
    """The answer of a site, or of the sites of a machine."""
    try:
        given = from_records(message.content)
        if isinstance(site, Machine):
            tensors, facts = site.respond(*given)
        else:
            tensors, facts = answered(site, *given)
    except FedkinError as error:  # nothing of the data was touched yet
        warner(site.say)(f"a request could not be answered: {error}")
        tensors, facts = {}, {"error": str(error), "name": site.name}
    return Message(to_records(facts, reply=tensors), reply_to=message)
