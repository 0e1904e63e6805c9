"""Recipes for the papers' tables, with the papers' numbers: `python -m fedkin.papers`."""

from fedkin.papers import feddeper, pfedkm, submodel
from fedkin.papers.recipe import Line, Recipe

__all__ = ["PAPERS", "Line", "Recipe"]

PAPERS: dict[str, dict[str, Recipe]] = {
    "feddeper": feddeper.RECIPES,
    "pfedkm": pfedkm.RECIPES,
    "submodel": submodel.RECIPES,
}
