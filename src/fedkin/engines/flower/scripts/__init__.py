"""Programs that run without fedkin (and so without torch): Flower's own, adapted."""
