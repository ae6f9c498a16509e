"""A graph network, reinforcement-learning nets, an LSTM, compiled optimizers, and an MLP of small kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, call_once, training, workload

EXTRA = {"suite": "extra"}


class MessageLayer(nn.Module):
    """Every edge sends a message made of both ends; a node adds up what it gets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = self.message(torch.cat((nodes[source], nodes[target]), dim=-1))
        return self.update(torch.zeros_like(nodes).index_add(0, target, messages), nodes)


class GraphNet(nn.Module):
    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(features, width), nn.Linear(width, classes)
        self.layers = nn.ModuleList(MessageLayer(width) for _ in range(depth))

    def forward(self, features: Tensor, source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        nodes = F.relu(self.enter(features))
        for layer in self.layers:
            nodes = layer(nodes, source, target)
        return F.cross_entropy(self.leave(nodes).float(), label)


@workload(
    "GNN",
    title="message passing on a random graph",
    mode="training",
    batch=10000,
    precision="fp32",
    structure="gathers and atomic additions by edge lists that change every step",
    tiny_batch=20,
    **EXTRA,
)
def graph_network(setting: Setting) -> Program:
    nodes, features, classes = setting.batch, setting.pick(128, 8), setting.pick(40, 4)
    model = setting.place(GraphNet(features, setting.pick(128, 8), setting.pick(4, 1), classes), training=True)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        edges = [draw.integers(nodes, 8 * nodes) for _ in range(2)]
        return draw.normal(nodes, features), *edges, draw.integers(classes, nodes)

    return training(model, fresh, setting)


class ActorCritic(nn.Module):
    def __init__(self, observed: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observed, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(seen)
        return F.log_softmax(self.actor(x), dim=-1), self.critic(x).squeeze(-1)


POLICY = {**EXTRA, "title": "actor and critic", "precision": "fp32"}


def actor_critic(setting: Setting, train: bool) -> tuple[ActorCritic, int, int]:
    observed, actions = setting.pick(64, 8), setting.pick(16, 4)
    return setting.place(ActorCritic(observed, setting.pick(256, 8), actions), train), observed, actions


@workload("RL-ACT", mode="inference", batch=64, structure="a handful of tiny kernels: the launch is the cost", **POLICY)
def act(setting: Setting) -> Program:
    model, observed, _ = actor_critic(setting, train=False)
    return Program(model, lambda draw: (draw.normal(setting.batch, observed),))


@workload("RL-PPO", mode="training", batch=4096, structure="a small clipped policy update with six inputs", **POLICY)
def policy_update(setting: Setting) -> Program:
    model, observed, actions = actor_critic(setting, train=True)

    def loss(seen: Tensor, action: Tensor, before: Tensor, advantage: Tensor, gain: Tensor) -> Tensor:
        chance, value = model(seen)
        ratio = (chance.gather(1, action[:, None]).squeeze(1) - before).exp()
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = -(chance.exp() * chance).sum(-1)
        return (0.5 * (value - gain).square() - clipped - 0.01 * entropy).mean()

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        n = setting.batch
        old = draw.uniform(n, low=-3.0, high=-1.0)
        return draw.normal(n, observed), draw.integers(actions, n), old, draw.normal(n), draw.normal(n)

    return training(model, fresh, setting, loss)


class Tagger(nn.Module):
    """Cells in a loop: torch.compile leaves `nn.LSTM` itself alone."""

    def __init__(self, vocabulary: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(depth))
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = list(zip(hidden.unbind(), memory.unbind(), strict=True))
        outputs = []
        for x in self.words(ids).unbind(1):
            for n, cell in enumerate(self.cells):
                states[n] = cell(x, states[n])
                x = states[n][0]
            outputs.append(x)
        hidden, memory = (torch.stack(parts) for parts in zip(*states, strict=True))
        return self.out(torch.stack(outputs, dim=1)), hidden, memory


@workload(
    "LSTM",
    title="two-layer LSTM, unrolled, with carried state",
    mode="inference",
    batch=16,
    precision="fp32",
    structure="hundreds of small kernels in sequence; state goes in and comes out",
    **EXTRA,
)
def lstm(setting: Setting) -> Program:
    vocabulary, width, depth, length = setting.pick((10000, 512, 2, 32), (50, 8, 1, 3))
    model = setting.place(Tagger(vocabulary, width, depth))

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        state = [draw.normal(depth, setting.batch, width) for _ in range(2)]
        return draw.integers(vocabulary, setting.batch, length), *state

    return Program(model, fresh)


def optimizer_program(
    setting: Setting, make: Callable[[list[Tensor]], torch.optim.Optimizer], scheduled: bool
) -> Program:
    """An optimizer step on gradients that are new tensors every time, as a backward pass leaves them."""
    width, depth = setting.pick((1024, 24), (8, 3))
    draw = Draw(setting)
    parameters = [nn.Parameter(draw.normal(width, width) * 0.02) for _ in range(depth)]
    parameters += [nn.Parameter(draw.normal(width) * 0.02) for _ in range(depth)]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # creates its state

    def step() -> None:
        optimizer.step()

    def fresh(draw: Draw) -> tuple[Any, ...]:
        rate = draw.host_number(1e-4, 1e-3)
        return rate, *(draw.normal(*parameter.shape) for parameter in parameters)

    def drive(call: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        rate, *gradients = inputs
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if scheduled:
            optimizer.param_groups[0]["lr"].fill_(rate)
        call()

    def changed() -> list[Tensor]:
        kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
        return [*(p.data for p in parameters), *kept]

    return Program(step, fresh, drive, lambda _: changed(), changed)


@workload(
    "ADAM",
    title="Adam, compiled",
    mode="update",
    batch=1,
    precision="fp32",
    structure="step counts on the CPU; parameters and state change in place; gradients are new tensors",
    **EXTRA,
)
def adam(setting: Setting) -> Program:
    return adam_program(setting, capturable=False)


@workload(
    "ADAM-CAP",
    title="Adam, compiled, capturable",
    mode="update",
    batch=1,
    precision="fp32",
    structure="as ADAM, with step counts on the GPU from the beginning",
    **EXTRA,
)
def capturable_adam(setting: Setting) -> Program:
    return adam_program(setting, capturable=on_gpu(setting))


def adam_program(setting: Setting, capturable: bool) -> Program:
    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3, foreach=True, capturable=capturable)

    return optimizer_program(setting, make, scheduled=False)


def on_gpu(setting: Setting) -> bool:
    """Torch has no capturable optimizers on the CPU: tiny ones are ordinary there."""
    return setting.device.type == "cuda"


@workload(
    "ADAMW-LR",
    title="AdamW, compiled, with a learning-rate schedule",
    mode="update",
    batch=1,
    precision="fp32",
    structure="the rate is a 0-d tensor that changes before every step",
    **EXTRA,
)
def adamw(setting: Setting) -> Program:
    capturable = on_gpu(setting)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        rate = torch.tensor(1e-3, device=setting.device if capturable else "cpu")
        return torch.optim.AdamW(parameters, lr=rate, foreach=capturable, capturable=capturable)

    return optimizer_program(setting, make, scheduled=True)


@workload(
    "MLP8",
    title="eight-layer MLP",
    mode="inference",
    batch=64,
    precision="bf16",
    structure="sixteen small kernels: the yardstick of the launch path",
    **EXTRA,
)
def mlp(setting: Setting) -> Program:
    width = setting.pick(512, 8)
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = setting.place(nn.Sequential(*layers))
    return Program(model, lambda draw: (draw.normal(setting.batch, width),))


@workload(
    "WIDE",
    title="forty-eight moving inputs, one 1 MB each",
    mode="inference",
    batch=48,
    precision="fp32",
    structure="many inputs with little work on each",
    tiny_batch=6,
    **EXTRA,
)
def wide(setting: Setting) -> Program:
    def mix(*fields: Tensor) -> tuple[Tensor, ...]:
        total = fields[0]
        for field in fields[1:]:
            total = total * 0.5 + field
        return total, total.tanh()

    size = setting.pick(262_144, 64)
    return Program(mix, lambda draw: tuple(draw.normal(size) for _ in range(setting.batch)), call_once)
