"""All recipes, by paper."""

from fedkin.papers import beyond, feddeper, neighbours, perm, pfedkm, submodel, unified
from fedkin.papers.item import Item

PAPERS: dict[str, tuple[Item, ...]] = {
    "perm": perm.ITEMS,
    "pfedkm": pfedkm.ITEMS,
    "submodel": submodel.ITEMS,
    "unified": unified.ITEMS,
    "feddeper": feddeper.ITEMS,
    "neighbours": neighbours.ITEMS,
    "beyond": beyond.ITEMS,
}
# what no paper claims: methods side by side
OWN = "beyond"
CONCLUSION = beyond.CONCLUSION
# what has no figures to choose from: run as a whole unless an item is named
WHOLE = ("neighbours", OWN)
# what the papers are called
TITLES = {
    "perm": "Distributed Personalized Empirical Risk Minimization",
    "pfedkm": "Personalized Federated Learning with Clustered Generalization",
    "submodel": "Convergence and Stability of Distributed Sub-model Training",
    "unified": "Personalized Federated Learning: A Unified Framework and Universal Optimization",
    "feddeper": "Depersonalized Federated Learning",
    "neighbours": "one claim each of eleven methods' papers",
    "beyond": "which method when",
}
