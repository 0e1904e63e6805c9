"""All recipes, by paper."""

from fedkin.papers import feddeper, perm, pfedkm, submodel, unified
from fedkin.papers.item import Item

PAPERS: dict[str, tuple[Item, ...]] = {
    "perm": perm.ITEMS,
    "pfedkm": pfedkm.ITEMS,
    "submodel": submodel.ITEMS,
    "unified": unified.ITEMS,
    "feddeper": feddeper.ITEMS,
}
