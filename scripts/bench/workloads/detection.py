"""Detectors: torchvision's Mask R-CNN, an EfficientDet in training, a YOLO head whose grids are made on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, tensors_of, training, workload
from scripts.bench.workloads.convolutional import Gate, conv, resnet, settle

MASK_RCNN: dict[str, Any] = {
    "mode": "inference",
    "batch": 1,
    "precision": "fp16",
    "source": "torchvision",
    "needs": ("torchvision",),
    "tolerance": 0.05,
}


@workload(
    "VM",
    title="vision_maskrcnn",
    suite="TorchBench",
    paper=True,
    structure="proposals and detections of data-dependent number, anchors on the CPU, graph breaks",
    **MASK_RCNN,
)
def mask_rcnn(setting: Setting) -> Program:
    return detector(setting, 100, lambda draw: draw)


@workload(
    "VM-AGAIN",
    title="vision_maskrcnn, one image again and again",
    suite="extra",
    structure="as VM, but sizes come again, and as few objects as a trained detector finds",
    **MASK_RCNN,
)
def mask_rcnn_again(setting: Setting) -> Program:
    """As TorchBench feeds its models: new images make proposals and masks of sizes that no call had before."""
    return detector(setting, 20, lambda _: Draw(setting))


def detector(setting: Setting, objects: int, source: Callable[[Draw], Draw]) -> Program:
    """Mask R-CNN with random weights, which by themselves would find nothing: so many objects, however they score.

    `source` says what an iteration's image is drawn from.
    """
    from torchvision.models.detection import MaskRCNN, maskrcnn_resnet50_fpn
    from torchvision.models.detection.rpn import AnchorGenerator

    keep = {"box_score_thresh": 0.0, "box_detections_per_img": setting.pick(objects, 4)}
    if setting.tiny:
        backbone = nn.Sequential(conv(3, 8, 3, 4), conv(8, 8, 3, 2))
        backbone.out_channels = 8
        anchors = AnchorGenerator(((16, 32),), ((1.0,),))
        model = MaskRCNN(
            backbone, 5, min_size=64, max_size=64, rpn_anchor_generator=anchors, rpn_post_nms_top_n_test=8, **keep
        )
    else:
        model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **keep)
    setting.place(settle(model))
    height, width = setting.pick((800, 1088), (64, 64))

    def detect(image: Tensor) -> list[dict[str, Tensor]]:
        return model([image])

    def observe(outputs: Any) -> list[Tensor]:
        # Random weights give near-ties, so that which boxes survive depends on the last bit; how many, and how well
        # they score, does not.
        detections = outputs[0]
        count = torch.tensor(float(len(detections["scores"])))
        return [count, detections["scores"].float().sort().values.mean()]

    return Program(detect, lambda draw: (source(draw).uniform(3, height, width),), observe=observe)


class Inverted(nn.Module):
    """EfficientNet's block: widen, depthwise convolution, gate, narrow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widen: int) -> None:
        super().__init__()
        inner = inputs * widen
        self.enter = conv(inputs, inner, 1, act=False) if widen > 1 else nn.Identity()
        self.depth = conv(inner, inner, kernel, stride, groups=inner, act=False)
        self.gate = Gate(inner, max(inputs // 4, 1))
        self.leave = conv(inner, outputs, 1, act=False)
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(self.gate(F.silu(self.depth(F.silu(self.enter(x))))))
        return x + y if self.same else y


class Backbone(nn.Module):
    """EfficientNet stages; returns the features of the last strides."""

    def __init__(self, stem: int, stages: list[tuple[int, int, int, int, int]], wanted: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = conv(3, stem, 3, 2, act=False)
        self.stages = nn.ModuleList()
        width = stem
        for kernel, outputs, depth, stride, widen in stages:
            blocks = [
                Inverted(width if n == 0 else outputs, outputs, kernel, stride if n == 0 else 1, widen)
                for n in range(depth)
            ]
            self.stages.append(nn.Sequential(*blocks))
            width = outputs
        self.wanted = wanted

    def forward(self, x: Tensor) -> list[Tensor]:
        x, found = F.silu(self.stem(x)), []
        for n, stage in enumerate(self.stages):
            x = stage(x)
            if n in self.wanted:
                found.append(x)
        return found


class Fusion(nn.Module):
    """One BiFPN layer: features pass down and up, mixed with learned positive weights."""

    def __init__(self, levels: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(separable(width, width) for _ in range(levels - 1))
        self.up = nn.ModuleList(separable(width, width) for _ in range(levels - 1))
        self.down_weights = nn.Parameter(torch.ones(levels - 1, 2))
        self.up_weights = nn.Parameter(torch.ones(levels - 1, 3))

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        down_weights, up_weights = F.relu(self.down_weights), F.relu(self.up_weights)
        middle = [features[-1]]
        for n in reversed(range(len(features) - 1)):
            mixed = mix(
                down_weights[n], features[n], F.interpolate(middle[0], size=features[n].shape[-2:], mode="nearest")
            )
            middle.insert(0, self.down[n](F.silu(mixed)))
        out = [middle[0]]
        for n in range(1, len(features)):
            lower = F.adaptive_max_pool2d(out[-1], features[n].shape[-2:])
            out.append(self.up[n - 1](F.silu(mix(up_weights[n - 1], features[n], middle[n], lower))))
        return out


def mix(weights: Tensor, *features: Tensor) -> Tensor:
    total = weights[: len(features)].sum() + 1e-4
    mixed = features[0] * (weights[0] / total)
    for n, feature in enumerate(features[1:], start=1):
        mixed = mixed + feature * (weights[n] / total)
    return mixed


def separable(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False), conv(inputs, outputs, 1, act=False)
    )


class EfficientDet(nn.Module):
    """Backbone, fusion layers, class and box heads shared over levels; anchors made on the CPU and kept there."""

    def __init__(
        self, backbone: Backbone, widths: tuple[int, ...], levels: int, width: int, depth: int, head: int, classes: int
    ):
        super().__init__()
        self.backbone = backbone
        self.inputs = nn.ModuleList(conv(w, width, 1, act=False) for w in widths)
        self.coarser = levels - len(widths)
        self.fusion = nn.ModuleList(Fusion(levels, width) for _ in range(depth))
        self.classify = nn.Sequential(*self.tower(width, head), nn.Conv2d(width, 9 * classes, 1))
        self.locate = nn.Sequential(*self.tower(width, head), nn.Conv2d(width, 9 * 4, 1))
        nn.init.constant_(self.classify[-1].bias, -4.6)
        self.classes = classes

    @staticmethod
    def tower(width: int, depth: int) -> list[nn.Module]:
        return [layer for _ in range(depth) for layer in (separable(width, width), nn.SiLU())]

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = [layer(x) for layer, x in zip(self.inputs, self.backbone(image), strict=True)]
        for _ in range(self.coarser):
            features.append(F.max_pool2d(features[-1], 3, 2, 1))
        for layer in self.fusion:
            features = layer(features)
        scores = torch.cat([self.rows(self.classify(x), self.classes) for x in features], dim=1)
        boxes = torch.cat([self.rows(self.locate(x), 4) for x in features], dim=1)
        return scores, boxes, self.anchors(image, features)

    @staticmethod
    def rows(x: Tensor, width: int) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, width)

    @staticmethod
    def anchors(image: Tensor, features: list[Tensor]) -> Tensor:
        """Nine boxes a cell as centre and size, in pixels, made on the CPU for the shapes at hand."""
        made = []
        for x in features:
            height, width = x.shape[-2:]
            stride = image.shape[-1] / width
            rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
            sizes = 4.0 * stride * torch.tensor([1.0, 1.26, 1.587]).repeat_interleave(3)
            ratio = torch.tensor([1.0, 1.4, 0.7]).repeat(3)
            centre = torch.stack((columns, rows), -1).mul(stride)[:, :, None, :].expand(-1, -1, 9, -1)
            shape = torch.stack((sizes * ratio, sizes / ratio), -1).expand(height, width, 9, 2)
            made.append(torch.cat((centre, shape), -1).reshape(-1, 4))
        return torch.cat(made).to(image.device)


def detection_loss(scores: Tensor, boxes: Tensor, anchors: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
    """Focal loss for classes and Huber loss for boxes, anchors matched by overlap without leaving the device."""
    corners = torch.cat((anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2), dim=1)
    low = torch.maximum(corners[None, :, None, :2], truth[:, None, :, :2])
    high = torch.minimum(corners[None, :, None, 2:], truth[:, None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (truth[..., 2:] - truth[..., :2]).prod(-1)
    overlap = shared / (anchors[:, 2:].prod(-1)[None, :, None] + area[:, None, :] - shared)
    best, match = overlap.max(dim=2)
    positive = best > 0.5
    count = positive.sum().clamp(min=1)
    wanted = labels.gather(1, match)
    target = F.one_hot(wanted, scores.shape[-1]).float() * positive[..., None]
    logits = scores.float()
    chance = logits.sigmoid()
    weight = torch.where(target > 0, 0.25 * (1 - chance).square(), 0.75 * chance.square())
    focal = (weight * (F.softplus(-logits.abs()) + logits.clamp(min=0) - logits * target)).sum() / count
    matched = truth.gather(1, match[..., None].expand(-1, -1, 4))
    centre, size = (matched[..., :2] + matched[..., 2:]) / 2, (matched[..., 2:] - matched[..., :2]).clamp(min=1.0)
    goal = torch.cat(((centre - anchors[:, :2]) / anchors[:, 2:], (size / anchors[:, 2:]).log()), dim=-1)
    huber = F.smooth_l1_loss(boxes.float(), goal, reduction="none", beta=0.1).sum(-1)
    return focal + 50.0 * (huber * positive).sum() / (4 * count)


@workload(
    "TEFD",
    title="timm_efficientdet (d1)",
    suite="TorchBench",
    paper=True,
    mode="training",
    batch=1,
    precision="amp",
    structure="anchors made on the CPU, hundreds of small layers at batch 1",
)
def efficientdet(setting: Setting) -> Program:
    # kernel, width, depth, stride, widen: the table of EfficientNet-B1.
    stages = [
        (3, 16, 2, 1, 1),
        (3, 24, 3, 2, 6),
        (5, 40, 3, 2, 6),
        (3, 80, 4, 2, 6),
        (5, 112, 4, 1, 6),
        (5, 192, 5, 2, 6),
        (3, 320, 2, 1, 6),
    ]
    backbone = Backbone(32, stages, (2, 4, 6))
    widths, levels, width, depth, head, classes = (40, 112, 320), 5, 88, 4, 3, 90
    if setting.tiny:
        backbone = Backbone(8, [(3, 8, 1, 2, 2), (3, 8, 1, 2, 2)], (0, 1))
        widths, levels, width, depth, head, classes = (8, 8), 2, 8, 1, 1, 3
    model = EfficientDet(backbone, widths, levels, width, depth, head, classes)
    setting.place(model, training=True)
    side, objects = setting.pick(640, 32), setting.pick(20, 3)

    def loss(image: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
        return detection_loss(*model(image), truth, labels)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        corner = draw.uniform(setting.batch, objects, 2, high=0.6 * side, dtype=torch.float32)
        size = draw.uniform(setting.batch, objects, 2, low=0.1 * side, high=0.4 * side, dtype=torch.float32)
        boxes = torch.cat((corner, corner + size), dim=-1)
        return draw.normal(setting.batch, 3, side, side), boxes, draw.integers(classes, setting.batch, objects)

    return training(model, fresh, setting, loss)


class Yolo(nn.Module):
    """A backbone and one head a level; cells and anchors are tensors on the CPU, made for the shape at hand."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.levels = nn.ModuleList([conv(width, width, 3), conv(width, width, 3, 2)])
        self.heads = nn.ModuleList(nn.Conv2d(width, 3 * (5 + classes), 1) for _ in range(2))
        self.sizes = torch.tensor(
            [[[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]], [[30.0, 61.0], [62.0, 45.0], [59.0, 119.0]]]
        )

    def forward(self, image: Tensor) -> Tensor:
        x, found = self.backbone(image), []
        for level, head, sizes in zip(self.levels, self.heads, self.sizes, strict=True):
            x = level(x)
            raw = head(x)
            batch, _, height, width = raw.shape
            raw = raw.view(batch, 3, -1, height, width).permute(0, 1, 3, 4, 2)
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            cells = torch.stack((columns, rows), dim=-1).to(raw.device, raw.dtype)
            stride = image.shape[-1] // width
            centre = (raw[..., :2].sigmoid() * 2 - 0.5 + cells) * stride
            size = (raw[..., 2:4].sigmoid() * 2).square() * sizes[:, None, None, :].to(raw.device, raw.dtype)
            found.append(torch.cat((centre, size, raw[..., 4:].sigmoid()), dim=-1).reshape(batch, -1, raw.shape[-1]))
        return torch.cat(found, dim=1)


@workload(
    "YOLO",
    title="one-stage detector with CPU grids",
    suite="extra",
    mode="inference",
    batch=1,
    precision="bf16",
    structure="grids and anchor sizes made on the CPU in every forward",
)
def yolo(setting: Setting) -> Program:
    body = resnet(setting.pick((2, 2, 2), (1,)), setting.pick(32, 4), None)
    width = setting.pick(512, 16)
    model = setting.place(settle(Yolo(body, width, setting.pick(80, 3))))
    side = setting.pick(640, 32)
    return Program(model, lambda draw: (draw.uniform(setting.batch, 3, side, side),), observe=tensors_of)
