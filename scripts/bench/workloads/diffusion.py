"""Diffusion: a prior and a decoder with schedules on the CPU, one step of a latent U-Net, and its sampler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, workload
from scripts.bench.workloads.layers import Attention, Block


def cosine_schedule(steps: int) -> Tensor:
    """How much of the signal is left after each step; a CPU tensor, as samplers keep it."""
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    kept = torch.cos((t + 0.008) / 1.008 * math.pi / 2).square()
    return (kept / kept[0]).clamp(1e-4, 0.9999).float()


def embed_time(t: Tensor, width: int) -> Tensor:
    rate = torch.exp(torch.arange(width // 2, device=t.device, dtype=torch.float32) * (-9.2 / (width // 2)))
    angle = t.float()[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Prior(nn.Module):
    """Predicts an image embedding from a text embedding and a noisy image embedding."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.query = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.out = nn.Linear(width, width)
        self.width = width

    def forward(self, noisy: Tensor, text: Tensor, t: Tensor) -> Tensor:
        time = self.time(embed_time(t, self.width).to(noisy.dtype))
        x = torch.stack((text, time, noisy, self.query.expand_as(noisy)), dim=1)
        mask = torch.ones(4, 4, dtype=torch.bool).tril().to(x.device)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.out(x[:, -1])


class Residual(nn.Module):
    """Two convolutions shifted by the time and condition embedding."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        groups = min(8, inputs, outputs)
        self.first = nn.Sequential(nn.GroupNorm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.shift = nn.Linear(condition, 2 * outputs)
        self.norm = nn.GroupNorm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.short = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        scale, shift = self.shift(F.silu(condition))[:, :, None, None].chunk(2, dim=1)
        return self.short(x) + self.second(F.silu(h * (1 + scale) + shift))


class Spatial(nn.Module):
    """Self attention over pixels, and cross attention to text where there is some."""

    def __init__(self, width: int, heads: int, text: int | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = Attention(width, heads)
        self.cross = Attention(width, heads, text) if text else None

    def forward(self, x: Tensor, text: Tensor | None) -> Tensor:
        batch, width, height, _ = x.shape
        rows = x.flatten(2).transpose(1, 2)
        rows = rows + self.own(self.norm(rows))
        if self.cross is not None:
            rows = rows + self.cross(rows, text)
        return rows.transpose(1, 2).reshape(batch, width, height, -1)


class UNet(nn.Module):
    """Down, middle and up with skips; attention at the inner resolutions."""

    def __init__(
        self, channels: int, width: int, factors: tuple[int, ...], condition: int, heads: int, text: int | None
    ):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        sizes = [width * f for f in factors]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        inputs = width
        for level, outputs in enumerate(sizes):
            blocks = nn.ModuleList([Residual(inputs, outputs, condition), Residual(outputs, outputs, condition)])
            attend = Spatial(outputs, heads, text) if level else None
            last = level + 1 == len(sizes)
            smaller = None if last else nn.Conv2d(outputs, outputs, 3, 2, 1)
            self.down.append(nn.ModuleDict({"blocks": blocks, **optional(attend=attend, smaller=smaller)}))
            inputs = outputs
        self.middle = nn.ModuleList([Residual(inputs, inputs, condition), Residual(inputs, inputs, condition)])
        self.attend = Spatial(inputs, heads, text)
        for level, outputs in reversed(list(enumerate(sizes))):
            blocks = nn.ModuleList(
                [Residual(inputs + outputs, outputs, condition), Residual(outputs, outputs, condition)]
            )
            attend = Spatial(outputs, heads, text) if level else None
            larger = nn.Conv2d(outputs, outputs, 3, padding=1) if level else None
            self.up.append(nn.ModuleDict({"blocks": blocks, **optional(attend=attend, larger=larger)}))
            inputs = outputs
        self.leave = nn.Sequential(
            nn.GroupNorm(min(8, width), width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1)
        )
        self.width = width

    def forward(self, x: Tensor, t: Tensor, text: Tensor | None = None, image: Tensor | None = None) -> Tensor:
        condition = self.time(embed_time(t, self.width).to(x.dtype))
        if image is not None:
            condition = condition + image
        x, skips = self.enter(x), []
        for level in self.down:
            x = self.run(level, x, condition, text)
            skips.append(x)
            if "smaller" in level:
                x = level["smaller"](x)
        x = self.middle[1](self.attend(self.middle[0](x, condition), text), condition)
        for level in self.up:
            x = self.run(level, torch.cat((x, skips.pop()), dim=1), condition, text)
            if "larger" in level:
                x = level["larger"](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(x)

    @staticmethod
    def run(level: nn.ModuleDict, x: Tensor, condition: Tensor, text: Tensor | None) -> Tensor:
        for block in level["blocks"]:
            x = block(x, condition)
        return level["attend"](x, text) if "attend" in level else x


def optional(**modules: nn.Module | None) -> dict[str, nn.Module]:
    return {name: module for name, module in modules.items() if module is not None}


class Dalle(nn.Module):
    """Text embedding to image embedding by the prior, image embedding to pixels by the decoder; a few steps of each."""

    def __init__(self, prior: Prior, decoder: UNet, steps: int, side: int) -> None:
        super().__init__()
        self.prior, self.decoder = prior, decoder
        self.steps, self.side = steps, side
        # On the CPU, and each a tensor of its own: Inductor 2.11 hands kernels the memory of a CPU tensor that is
        # indexed between CUDA operators, with and without graphs ("invalid argument").
        grid = [int(999 * (steps - n) / steps) for n in range(steps + 1)]
        self.kept = {n: kept.clone() for n, kept in zip(grid, cosine_schedule(1000)[grid].unbind(), strict=True)}

    def forward(self, text: Tensor, embedding_noise: Tensor, pixel_noise: Tensor) -> Tensor:
        x = embedding_noise
        for t, before, after in self.times():
            now = torch.full((text.shape[0],), t).to(x.device)
            guess = F.normalize(self.prior(x, text, now).float(), dim=-1).to(x.dtype) * math.sqrt(x.shape[-1])
            x = step(x, guess, before, after)
        image, x = x, pixel_noise
        for t, before, after in self.times():
            now = torch.full((text.shape[0],), t).to(x.device)
            noise = self.decoder(x, now, image=image)
            guess = ((x - (1 - before).sqrt() * noise) / before.sqrt()).clamp(-1, 1)
            x = step(x, guess, before, after)
        return x

    def times(self) -> list[tuple[int, Tensor, Tensor]]:
        """Step numbers with the 0-d CPU tensors of the schedule before and after the step."""
        return [(a, self.kept[a], self.kept[b]) for a, b in itertools.pairwise(self.kept)]


def step(x: Tensor, guess: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """One deterministic step from the noise level `before` to `after`."""
    noise = (x - before.sqrt() * guess) / (1 - before).sqrt()
    return after.sqrt() * guess + (1 - after).sqrt() * noise


@workload(
    "DALLE2",
    title="DALLE2_pytorch",
    suite="TorchBench",
    paper=True,
    mode="inference",
    batch=1,
    precision="bf16",
    structure="sampling loops whose schedules are 0-d CPU tensors, steps copied to the GPU",
)
def dalle2(setting: Setting) -> Program:
    width, side, steps = setting.pick(512, 16), setting.pick(64, 8), 2
    prior = Prior(width, setting.pick(6, 1), setting.pick(8, 2))
    factors = setting.pick((1, 2, 4, 8), (1, 2))
    decoder = UNet(3, setting.pick(128, 8), factors, width, setting.pick(8, 2), text=None)
    model = setting.place(Dalle(prior, decoder, steps, side))

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        n = setting.batch
        return draw.normal(n, width), draw.normal(n, width), draw.normal(n, 3, side, side)

    return Program(model, fresh)


class Latent:
    """A U-Net over latents that follows a text, at the sizes of its workloads; the first half of the texts is empty."""

    def __init__(self, setting: Setting) -> None:
        width, factors = setting.pick((192, (1, 2, 4, 4)), (8, (1, 2)))
        self.side, self.text_width, self.words = setting.pick((64, 768, 77), (8, 16, 4))
        self.batch = setting.batch
        self.model = setting.place(UNet(4, width, factors, 4 * width, setting.pick(8, 2), self.text_width))

    def noise(self, x: Tensor, t: Tensor, text: Tensor, guidance: float) -> Tensor:
        """The noise in `x`, classifier-free guided; one time step for each of the texts."""
        free, guided = self.model(torch.cat((x, x)), t, text).chunk(2)
        return free + guidance * (guided - free)

    def image(self, draw: Draw) -> Tensor:
        return draw.normal(self.batch, 4, self.side, self.side)

    def text(self, draw: Draw) -> Tensor:
        return draw.normal(2 * self.batch, self.words, self.text_width)


@workload(
    "UNET",
    title="latent diffusion U-Net, one guided step",
    suite="extra",
    mode="inference",
    batch=1,
    precision="bf16",
    structure="a Python number of the schedule that changes every call, classifier-free guidance",
)
def latent_unet(setting: Setting) -> Program:
    latent = Latent(setting)

    def guided_step(x: Tensor, t: Tensor, text: Tensor, kept: Tensor) -> Tensor:
        noise = latent.noise(x, torch.cat((t, t)), text, 7.5)
        guess = (x - (1 - kept).sqrt() * noise) / kept.sqrt()
        return step(x, guess, kept, (kept * 1.01).clamp(max=0.999))

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        kept = torch.tensor(draw.host_number(0.2, 0.9))
        return latent.image(draw), draw.integers(1000, setting.batch), latent.text(draw), kept

    return Program(guided_step, fresh)


@workload(
    "DDIM",
    title="latent diffusion U-Net, a sampler's ten steps",
    suite="extra",
    mode="inference",
    batch=1,
    precision="bf16",
    structure="a loop around one compiled step; its time and schedule are 0-d CPU tensors, others in every call",
)
def ddim(setting: Setting) -> Program:
    latent, steps = Latent(setting), setting.pick(10, 3)
    kept, last = cosine_schedule(1000), torch.ones(())  # on the CPU, where the loop looks its steps up
    stride = 1000 // steps
    numbers = [n * stride for n in reversed(range(steps))]
    times = torch.tensor(numbers)

    def guided_step(
        x: Tensor, t: Tensor, text: Tensor, before: Tensor, after: Tensor, sigma: Tensor, new: Tensor, guidance: float
    ) -> Tensor:
        noise = latent.noise(x, t.to(x.device).expand(len(text)), text, guidance)
        guess = ((x - (1 - before).sqrt() * noise) / before.sqrt()).clamp(-1, 1)
        return after.sqrt() * guess + (1 - after - sigma**2).sqrt() * noise + sigma * new

    def sample(call: Callable[..., Any], inputs: Sequence[Any]) -> Tensor:
        x, text, *noises = inputs
        with torch.no_grad():
            for number, t, new in zip(numbers, times, noises, strict=True):
                before, after = kept[number], kept[number - stride] if number else last
                sigma = 0.5 * ((1 - after) / (1 - before) * (1 - before / after)).sqrt()
                x = call(x, t, text, before, after, sigma, new, 7.5)
        return x

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return latent.image(draw), latent.text(draw), *(latent.image(draw) for _ in range(steps))

    return Program(guided_step, fresh, sample)
