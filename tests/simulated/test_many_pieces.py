"""A function in many small graphs, one behind the other: each is recorded once, and nothing is recorded again."""

from __future__ import annotations

import torch

import pygraph_inductor
from tests.pieces import broken_up
from tests.simulated.two_ways import check, compiled

PIECES = 24
STEPS = 8


def test_every_piece_is_recorded_once_and_all_steps_are_those_of_plain_calls():
    recorded: list[int] = []

    def program():
        recorded.clear()
        weights = [torch.randn(8, 8).requires_grad_() for _ in range(PIECES)]
        optimizer = torch.optim.SGD(weights, lr=0.01)
        call = compiled(broken_up(PIECES))
        earlier = len(pygraph_inductor.report().functions)

        def step(number):
            optimizer.zero_grad()
            x = torch.randn(4, 8).requires_grad_()
            loss = call(x, weights).square().mean()
            loss.backward()
            optimizer.step()
            functions = pygraph_inductor.report().functions[earlier:]
            recorded.append(sum(len(one.recordings) + one.retired for one in functions))
            return [loss, x.grad, *(weight.detach().clone() for weight in weights)]

        return step

    facts = check(program, calls=STEPS, functions=2 * PIECES)
    assert [one.kind for one in facts].count("backward") == PIECES
    assert all(len(one.recordings) == 1 and not one.retired for one in facts), [one.recordings for one in facts]
    assert all(one.replays == STEPS - 2 for one in facts), [(one.name, one.replays) for one in facts]
    assert recorded == [0, *[2 * PIECES] * (STEPS - 1)], recorded
