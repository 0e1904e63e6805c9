"""Fedkin over Flower: the same methods on real devices. Needs the extra `fedkin[flower]`."""
