"""The stability experiment of the sub-model paper."""

from fedkin.papers.stability import stability


def test_models_move_less_with_a_sample_the_fewer_coordinates_clients_hold():
    table = stability(seed=0, pairs=8, rounds=10, kind="random")
    distances = [found["distance"] for found in table.values()]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 1.5 * distances[2] > 0
