"""Shamir's secret sharing over a prime field."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from fedkin.errors import FedkinError

# the largest prime below 2^257: any 32 bytes are an element
PRIME = 2**257 - 93


def polynomial(secret: int, threshold: int, prime: int = PRIME) -> list[int]:
    """Coefficients of a random polynomial of degree threshold - 1 with the secret at 0."""
    if not 0 <= secret < prime:
        raise ValueError("the secret is not an element of the field")
    return [secret, *(secrets.randbelow(prime) for _ in range(threshold - 1))]


def share(coefficients: Sequence[int], at: int, prime: int = PRIME) -> int:
    """The polynomial's value at a point that is not 0."""
    if at % prime == 0:
        raise ValueError("the value at 0 is the secret itself")
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % prime
    return value


def combine(shares: Mapping[int, int], threshold: int, prime: int = PRIME) -> int:
    """The secret from shares by their points: Lagrange's interpolation at 0."""
    if len(shares) < threshold:
        raise FedkinError(f"{len(shares)} shares are not the {threshold} that are needed")
    chosen = sorted(shares)[:threshold]
    secret = 0
    for i in chosen:
        above = below = 1
        for j in chosen:
            if j != i:
                above, below = above * j % prime, below * (j - i) % prime
        secret = (secret + shares[i] * above * pow(below, -1, prime)) % prime
    return secret
