"""Ratios measured in one run: ours against the same work as a bare PyTorch loop."""
