"""Dispatches that nothing orders change places; what is ordered stays."""

from itertools import pairwise

from softmetal.api.checked import shuffled
from softmetal.types import Copy, Dispatch, Order, Resources


def dispatch(number):
    return Dispatch(number, (1, 1, 1), (1, 1, 1), ())


def kernels(commands):
    return [c.kernel for c in commands if isinstance(c, Dispatch)]


def test_serial_encoders_keep_their_order():
    commands = [Order("serial"), *map(dispatch, range(9)), Order("barrier"), Copy(1, 2, 3)]
    for seed in range(20):
        assert shuffled(commands, seed) == commands


def test_concurrent_dispatches_change_places_between_barriers():
    commands = [
        Order("concurrent"),
        *map(dispatch, range(6)),
        Order("barrier"),
        *map(dispatch, range(6, 12)),
    ]
    orders = {tuple(kernels(shuffled(commands, seed))) for seed in range(20)}
    assert len(orders) > 15
    for order in orders:
        assert sorted(order[:6]) == list(range(6))
        assert sorted(order[6:]) == list(range(6, 12))
    assert shuffled(commands, 3) == shuffled(commands, 3)


def test_regions_go_with_their_dispatch():
    commands = [Order("concurrent")]
    for number in range(8):
        commands += [Resources((number,)), dispatch(number)]
    commands += [
        Order("serial"),
        dispatch(99),
        Order("concurrency", 1),
        dispatch(100),
        dispatch(101),
    ]
    for seed in range(20):
        result = shuffled(commands, seed)
        assert sorted(map(str, result)) == sorted(map(str, commands))
        for before, command in pairwise(result):
            if isinstance(command, Dispatch) and command.kernel < 99:
                assert before == Resources((command.kernel,))
        assert kernels(result)[8] == 99
