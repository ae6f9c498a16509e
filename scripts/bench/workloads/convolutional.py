"""Convolutional networks, written after their papers: AlexNet, DenseNet-121, LCNet, ResNet-50 and DCGAN."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, training, workload

TORCHBENCH = {"suite": "TorchBench", "paper": True}


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


def images(setting: Setting, side: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.normal(setting.batch, 3, side, side),)


def labelled(setting: Setting, side: int, classes: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.normal(setting.batch, 3, side, side), draw.integers(classes, setting.batch))


def settle(model: nn.Module) -> nn.Module:
    """Give batch norms statistics that keep activations in range, as trained weights would."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return model


@workload(
    "ALNET",
    title="alexnet",
    mode="inference",
    batch=2,
    precision="bf16",
    structure="few large layers at a tiny batch",
    **TORCHBENCH,
)
def alexnet(setting: Setting) -> Program:
    a, b, c, d, wide = setting.pick((64, 192, 384, 256, 4096), (4, 8, 8, 8, 16))
    classes = setting.pick(1000, 10)
    model = nn.Sequential(
        nn.Conv2d(3, a, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(b, c, 3, padding=1), nn.ReLU(),
        nn.Conv2d(c, d, 3, padding=1), nn.ReLU(),
        nn.Conv2d(d, d, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(setting.pick(6, 1)), nn.Flatten(),
        nn.Dropout(), nn.Linear(d * setting.pick(36, 1), wide), nn.ReLU(),
        nn.Dropout(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, classes),
    )  # fmt: skip
    return Program(setting.place(model), images(setting, setting.pick(224, 64)))


class DenseLayer(nn.Module):
    """Its input with `growth` new channels appended."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.squeeze = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.mid = nn.BatchNorm2d(4 * growth)
        self.grow = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.grow(F.relu(self.mid(self.squeeze(F.relu(self.norm(x))))))
        return torch.cat((x, new), dim=1)


def densenet(blocks: tuple[int, ...], growth: int, classes: int) -> nn.Sequential:
    width = 2 * growth
    layers: list[nn.Module] = [*conv(3, width, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    for n, depth in enumerate(blocks):
        for _ in range(depth):
            layers.append(DenseLayer(width, growth))
            width += growth
        layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU())
        if n + 1 < len(blocks):
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@workload(
    "DNET",
    title="densenet121",
    mode="inference",
    batch=64,
    precision="bf16",
    structure="hundreds of kernels, many concatenations",
    **TORCHBENCH,
)
def densenet_inference(setting: Setting) -> Program:
    model = settle(densenet(setting.pick((6, 12, 24, 16), (2, 2)), setting.pick(32, 4), setting.pick(1000, 10)))
    return Program(setting.place(model), images(setting, setting.pick(224, 32)))


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        inner = inner or max(width // 4, 4)
        self.squeeze = nn.Conv2d(width, inner, 1)
        self.expand = nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.expand(F.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return x * F.hardsigmoid(scale)


class Separable(nn.Module):
    """Depthwise then pointwise convolution with hard-swish, optionally gated."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, gated: bool) -> None:
        super().__init__()
        self.depth = conv(inputs, inputs, kernel, stride, groups=inputs, act=False)
        self.gate = Gate(inputs) if gated else nn.Identity()
        self.point = conv(inputs, outputs, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(self.point(self.gate(F.hardswish(self.depth(x)))))


@workload(
    "LCNET",
    title="lcnet_050",
    suite="TIMM",
    paper=True,
    mode="inference",
    batch=256,
    precision="bf16",
    structure="a small mobile network at a large batch: a wide input for little work",
)
def lcnet(setting: Setting) -> Program:
    # kernel, width at scale 1, stride, gated: the table of the PP-LCNet paper, at half width.
    table = [
        (3, 32, 1, False),
        (3, 64, 2, False),
        (3, 64, 1, False),
        (3, 128, 2, False),
        (3, 128, 1, False),
        (3, 256, 2, False),
    ]
    table += [(5, 256, 1, False)] * 5 + [(5, 512, 2, True), (5, 512, 1, True)]
    if setting.tiny:
        table = [(3, 32, 1, False), (5, 32, 2, True)]
    width = 8
    layers: list[nn.Module] = [conv(3, width, 3, 2)]
    for kernel, outputs, stride, gated in table:
        layers.append(Separable(width, outputs // 2, kernel, stride, gated))
        width = outputs // 2
    head = setting.pick(1280, 16)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, head, 1), nn.Hardswish(), nn.Flatten()]
    model = settle(nn.Sequential(*layers, nn.Linear(head, setting.pick(1000, 10))))
    return Program(setting.place(model), images(setting, setting.pick(224, 32)))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            conv(inputs, inner, 1), conv(inner, inner, 3, stride), conv(inner, 4 * inner, 1, act=False)
        )
        same = stride == 1 and inputs == 4 * inner
        self.short = nn.Identity() if same else conv(inputs, 4 * inner, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.short(x))


def resnet(blocks: tuple[int, ...], width: int, classes: int | None) -> nn.Sequential:
    """ResNet's stem and stages, and its classifier if there are classes."""
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(blocks):
        for n in range(depth):
            layers.append(Bottleneck(channels, width << stage, 2 if stage and n == 0 else 1))
            channels = 4 * (width << stage)
    if classes is not None:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


@workload(
    "RN50-T",
    title="resnet50",
    suite="extra",
    mode="training",
    batch=8,
    precision="amp",
    structure="running statistics change in place; a short step that is host-bound",
)
def resnet_training(setting: Setting) -> Program:
    classes = setting.pick(1000, 10)
    model = setting.place(resnet(setting.pick((3, 4, 6, 3), (1, 1)), setting.pick(64, 4), classes), training=True)

    def loss(x: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(model(x), label)

    return training(model, labelled(setting, setting.pick(224, 32), classes), setting, loss)


def generator(noise: int, width: int, steps: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = noise
    for n in reversed(range(steps)):
        outputs = width << n
        first = not layers
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, 1 if first else 2, 0 if first else 1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.ConvTranspose2d(inputs, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width: int, steps: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for n in range(1, steps):
        layers += [
            nn.Conv2d(width << (n - 1), width << n, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width << n),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*layers, nn.Conv2d(width << (steps - 1), 1, 4, bias=False), nn.Flatten(0))


@workload(
    "DCGAN",
    title="dcgan",
    mode="training",
    batch=32,
    precision="amp",
    structure="two networks, three passes through one of them",
    **TORCHBENCH,
)
def dcgan(setting: Setting) -> Program:
    steps, width, noise = setting.pick(4, 2), setting.pick(64, 4), setting.pick(100, 8)
    pair = nn.ModuleList([generator(noise, width, steps), discriminator(width, steps)])
    setting.place(pair, training=True)

    def losses(real: Tensor, z: Tensor) -> Tensor:
        fake = pair[0](z)
        on_real, on_fake = pair[1](real), pair[1](fake.detach())
        judge = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        return judge + F.softplus(-pair[1](fake)).mean()

    side = 4 << steps

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.normal(setting.batch, 3, side, side), draw.normal(setting.batch, noise, 1, 1)

    return training(pair, fresh, setting, losses)
