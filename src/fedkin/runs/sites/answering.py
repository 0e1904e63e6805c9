"""A site's answer as it leaves: what went wrong is told in full at the site only."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedkin.engines.flower.logs import warner
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.runs.sites.policy import PolicyError
from fedkin.runs.sites.site import SiteWorker


def answered(site: SiteWorker, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
    """The site's answer, or its reason for giving none."""
    try:
        return site.answer(tensors, facts)
    except FedkinError as error:
        if site.refused is None:
            warner(site.say)(f"a request could not be answered: {error}")
        # an error about data may quote values, which must not reach the server
        reason = str(error)
        if isinstance(error, PolicyError):
            reason = "that is outside what this site allows; details are on the site's screen"
        elif site.refused is not None:
            reason = "its data do not fit; details are on the site's screen"
        return {}, {"error": reason, "name": site.name}
