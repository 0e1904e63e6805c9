"""
A secure sum, step by step
==========================

What ``fedkin serve --secure-sum`` and its sites say to each other, in one process: five sites add
up their numbers, one of them is lost on the way, and the server sees the sum of the others and
nothing else. This needs ``pip install 'fedkin[flower]'``.
"""

from pathlib import Path

import numpy as np
import torch

from fedkin.engines.flower.certificates import SiteFiles, make_certificates
from fedkin.engines.flower.identity import identity_of
from fedkin.engines.secure.collector import Collector
from fedkin.engines.secure.crypto import Trust
from fedkin.engines.secure.fixed import decode, encode, layout_of
from fedkin.engines.secure.party import Party
from fedkin.engines.secure.terms import Terms

names = ["ada", "bob", "cleo", "dan", "eve"]
make_certificates(Path("certs"), [], names)

# what the sum is about: every message is signed for these terms and no others
terms = Terms(
    "my-run", "method", start=1, round=7, call=0, request="", at_least=3, bits=32, most=5
)  # fmt: skip
answers = {name: {"dx": torch.randn(1, 4)} for name in names}
sites = {}
for name in names:
    identity, trust = identity_of(name, SiteFiles.of(Path("certs/sites") / name))
    numbers = encode(answers[name], 1.0, terms.bits, terms.most)
    sites[name] = Party(identity, trust, terms, layout_of(answers[name]), numbers)


def ask(stage, questions):
    """A network on which dan is lost before he has sent his numbers."""
    there = [name for name in questions if name != "dan" or stage in ("keys", "shares")]
    print(f"{stage:7} answered by {', '.join(there)}")
    said = {name: sites[name].answer(stage, questions[name]) for name in there}
    if stage == "masked":
        print("bob has", answers["bob"]["dx"][0].tolist(), "and sends", said["bob"][1].tolist())
    return said


keys = {name: said for name, (said, _) in ask("keys", {name: {} for name in names}).items()}
server = Collector(terms, Trust(Path("certs/authority.pem").read_bytes()), ask, print)
total = server.total(keys)

# %%
# The sum is that of the sites that stayed, to the error of fixed-point numbers.

found = decode(total.words, terms.bits, layout_of(answers["ada"]))["dx"]
plain = torch.stack([answers[name]["dx"][0] for name in total.sites]).sum(0)
print("sum over", ", ".join(total.sites), "is", found.numpy().round(4))
print("largest difference to the plain sum:", float((found - plain).abs().max()))
assert np.allclose(found, plain, atol=1e-6)
