"""A two-tower image and text model at ViT-B/32 size; its causal mask is made on the CPU in every forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, workload
from scripts.bench.workloads.layers import Block


class ImageTower(nn.Module):
    def __init__(self, side: int, patch: int, width: int, depth: int, heads: int, joint: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        count = (side // patch) ** 2 + 1
        self.head_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(count, width) * width**-0.5)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.project = nn.Linear(width, joint, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.head_token.expand(x.shape[0], 1, -1), x), dim=1)
        x = self.before(x + self.positions)
        for block in self.blocks:
            x = block(x)
        return self.project(self.after(x[:, 0]))


class TextTower(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int, joint: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.01)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.after = nn.LayerNorm(width)
        self.project = nn.Linear(width, joint, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1).to(device=x.device, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, mask=mask)
        last = ids.argmax(dim=-1)
        return self.project(self.after(x)[torch.arange(x.shape[0], device=x.device), last])


class Clip(nn.Module):
    def __init__(self, image: ImageTower, text: TextTower) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, image: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(ids), dim=-1)
        return a, b, self.scale.exp() * a @ b.t()


@workload(
    "MMC",
    title="torch_multimodal_clip",
    suite="TorchBench",
    paper=True,
    mode="inference",
    batch=1,
    precision="bf16",
    structure="a causal mask made on the CPU in every forward",
)
def clip(setting: Setting) -> Program:
    joint, side = setting.pick(512, 16), setting.pick(224, 32)
    image = ImageTower(side, setting.pick(32, 16), *setting.pick((768, 12, 12), (16, 1, 2)), joint)
    vocabulary, length = setting.pick(49408, 100), setting.pick(77, 8)
    text = TextTower(vocabulary, length, *setting.pick((512, 12, 8), (16, 1, 2)), joint)
    model = setting.place(Clip(image, text))

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.normal(setting.batch, 3, side, side), draw.integers(vocabulary, setting.batch, length)

    return Program(model, fresh)
