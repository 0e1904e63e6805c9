"""Shamir's shares against published numbers, and what they promise."""

from __future__ import annotations

from itertools import combinations

import pytest

from fedkin.engines.secure.shamir import PRIME, combine, polynomial, share
from fedkin.errors import FedkinError

# the test vectors of RFC 9591 (FROST) for secp256k1: 2 of 3 shares modulo the order of secp256k1
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SECRET = 0x0D004150D27C3BF2A42F312683D35FAC7394B1E9E318249C1BFE7F0795A83114
SLOPE = 0xFBF85EADAE3058EA14F19148BB72B45E4399C0B16028ACAF0395C9B03C823579
SHARES = {
    1: 0x08F89FFE80AC94DCB920C26F3F46140BFC7F95B493F8310F5FC1EA2B01F4254C,
    2: 0x04F0FEAC2EDCEDC6CE1253B7FAB8C86B856A797F44D83D82A385554E6E401984,
    3: 0x00E95D59DD0D46B0E303E500B62B7CCB0E555D49F5B849F5E748C071DA8C0DBC,
}
# the example of Wikipedia's "Shamir's secret sharing": 3 of 6 modulo 1613
EXAMPLE = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}


def test_the_shares_of_rfc_9591():
    assert {at: share([SECRET, SLOPE], at, ORDER) for at in SHARES} == SHARES
    for chosen in combinations(SHARES, 2):
        assert combine({at: SHARES[at] for at in chosen}, 2, ORDER) == SECRET


def test_the_shares_of_the_example_with_a_square():
    assert {at: share([1234, 166, 94], at, 1613) for at in EXAMPLE} == EXAMPLE
    for chosen in combinations(EXAMPLE, 3):
        assert combine({at: EXAMPLE[at] for at in chosen}, 3, 1613) == 1234


def test_the_field_is_a_prime_that_holds_32_bytes():
    # Miller and Rabin's test with the first primes as witnesses
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53):
        powers = [pow(witness, odd * 2**i, PRIME) for i in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert PRIME > 2**256


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (2, 3), (3, 5), (21, 30)])
def test_a_threshold_of_shares_gives_any_secret_back(threshold: int, count: int):
    for secret in (0, 1, 2**256 - 1, PRIME - 1):
        line = polynomial(secret, threshold)
        shares = {at: share(line, at) for at in range(1, count + 1)}
        last = dict(list(shares.items())[-threshold:])
        assert combine(shares, threshold) == combine(last, threshold) == secret


def test_fewer_shares_say_nothing():
    """Below the threshold every secret is as likely: one share fits any of them."""
    prime, given = 101, {1: 17}
    fitting = {combine({**given, 2: other}, 2, prime) for other in range(prime)}
    assert fitting == set(range(prime))
    with pytest.raises(FedkinError, match="1 shares are not the 2"):
        combine(given, 2, prime)


def test_the_secret_itself_is_no_share():
    with pytest.raises(ValueError, match="secret itself"):
        share([5, 6], 0)
    with pytest.raises(ValueError, match="element"):
        polynomial(PRIME, 2)
