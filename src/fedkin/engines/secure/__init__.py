"""Sums of sites' answers that show no single one (Bonawitz et al., 2017). Knows no network."""
