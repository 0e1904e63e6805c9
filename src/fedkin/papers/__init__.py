"""Recipes for the papers' tables and figures, with the papers' numbers: `fedkin reproduce`."""
