"""Ocean physics on fields: an equation of state and a turbulence closure, as the pyhpc benchmarks have them.

The polynomials and constants are ours; what is kept is the shape: a million cells, hundreds of elementwise operations,
many field inputs, a tridiagonal solve along the vertical, state written in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.bench.registry import Draw, Program, Setting, call_once, workload

PYHPC = {"suite": "TorchBench", "paper": True, "mode": "inference", "batch": 1_048_576, "precision": "bf16"}


def grid(setting: Setting) -> tuple[int, int, int]:
    """Cells along x, y and the vertical: about `batch` cells, sixteen times flatter than wide."""
    if setting.tiny:
        return 8, 6, 4
    edge = setting.batch ** (1 / 3)
    return math.ceil(2 * edge), math.ceil(2 * edge), math.ceil(0.25 * edge)


def density(salt: Tensor, heat: Tensor, depth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A rational equation of state with its derivatives by salt and heat, about a hundred elementwise operations."""
    root = (salt * 0.025 + 0.6).sqrt()
    t, p = heat * 0.025, depth * 1e-4
    top = [[0.8 + 0.05 * ((3 * i + 5 * j) % 7) for j in range(5)] for i in range(5)]
    below = [[1.0 + 0.03 * ((5 * i + 2 * j) % 5) for j in range(4)] for i in range(4)]
    over, by_root = polynomial(top, root, t)
    under, by_t = polynomial(below, t, p)
    rho = over / under * (1 + p * (0.02 + 0.001 * root * t))
    return rho, by_root / under, -over * by_t / (under * under)


def polynomial(rows: list[list[float]], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A two-dimensional Horner scheme: its value and its derivative by x."""
    value, slope = torch.zeros_like(x), torch.zeros_like(x)
    for row in reversed(rows):
        inner = torch.full_like(y, row[-1])
        for c in reversed(row[:-1]):
            inner = inner * y * 0.5 + c
        slope = slope * x * 0.5 + value * 0.5
        value = value * x * 0.5 + inner
    return value, slope


@workload(
    "EOS", title="pyhpc_equation_of_state", structure="three wide inputs, elementwise work, one or two kernels", **PYHPC
)
def equation_of_state(setting: Setting) -> Program:
    nx, ny, nz = grid(setting)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        salt, heat = draw.uniform(nx, ny, nz, low=0.1, high=40.0), draw.uniform(nx, ny, nz, low=-2.0, high=30.0)
        return salt, heat, draw.uniform(1, 1, nz, high=5000.0)

    return Program(density, fresh)


def solve_column(lower: Tensor, middle: Tensor, upper: Tensor, right: Tensor) -> Tensor:
    """The Thomas algorithm along the last dimension: sequential over levels, parallel over columns."""
    levels = right.shape[-1]
    c, d = [upper[..., 0] / middle[..., 0]], [right[..., 0] / middle[..., 0]]
    for k in range(1, levels):
        pivot = 1.0 / (middle[..., k] - lower[..., k] * c[-1])
        c.append(upper[..., k] * pivot)
        d.append((right[..., k] - lower[..., k] * d[-1]) * pivot)
    solution = [d[-1]]
    for k in reversed(range(levels - 1)):
        solution.append(d[k] - c[k] * solution[-1])
    return torch.stack(list(reversed(solution)), dim=-1)


def limited_flux(energy: Tensor, speed: Tensor, mask: Tensor, axis: int) -> Tensor:
    """A superbee-limited advective flux along one axis."""
    ahead, behind, further = energy.roll(-1, axis), energy.roll(1, axis), energy.roll(-2, axis)
    rise = ahead - energy
    safe = torch.where(rise.abs() < 1e-4, torch.full_like(rise, 1e-4), rise)
    ratio = torch.where(speed > 0, energy - behind, further - ahead) / safe
    limit = torch.maximum(
        torch.minimum(2 * ratio, torch.ones_like(ratio)), torch.minimum(ratio, torch.full_like(ratio, 2.0))
    )
    limit = limit.clamp(min=0.0, max=2.0)
    return mask * (speed * (ahead + energy) * 0.5 - speed.abs() * (1 - limit) * rise * 0.5)


def turbulence(
    u: Tensor,
    v: Tensor,
    w: Tensor,
    energy: Tensor,
    tendency: Tensor,
    stability: Tensor,
    shear: Tensor,
    diffusivity: Tensor,
    mask_u: Tensor,
    mask_v: Tensor,
    mask_w: Tensor,
    wind: Tensor,
    thickness: Tensor,
    bottom: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of turbulent kinetic energy: mixing lengths, vertical solve, advection; `tendency` in place."""
    root = energy.clamp(min=1e-4).sqrt()
    length = (math.sqrt(2.0) * root / stability.clamp(min=0.01).sqrt()).clamp(0.05, 10.0)
    viscosity = (0.1 * length * root * mask_w).clamp(max=10.0)
    prandtl = (6.6 * stability / shear.clamp(min=0.01)).clamp(1.0, 10.0)
    mixing = 0.5 * (viscosity + diffusivity)
    between = 0.5 * (mixing + mixing.roll(-1, -1)) / thickness
    between = torch.cat((between[..., :-1], torch.zeros_like(between[..., :1])), dim=-1)
    lower = -torch.cat((torch.zeros_like(between[..., :1]), between[..., :-1]), dim=-1) / thickness
    upper = -between / thickness
    decay = 0.7 * root / length
    forcing = viscosity * shear - viscosity / prandtl * stability
    surface = torch.cat((torch.zeros_like(energy[..., :-1]), (0.1 * wind.abs())[..., None]), dim=-1)
    right = energy + 0.1 * (forcing + surface)
    # Level numbers are made on the CPU and compared with a field of bottom levels, as the original masks edges.
    level = torch.arange(energy.shape[-1]).to(energy.device)
    water = level >= bottom[..., None]
    lower = torch.where(level > bottom[..., None], lower, torch.zeros_like(lower))
    solved = solve_column(0.1 * lower, 1 + 0.1 * (decay - lower - upper), 0.1 * upper, right)
    solved = torch.where(water, solved, energy) * mask_w
    east, north = limited_flux(solved, u, mask_u, 0), limited_flux(solved, v, mask_v, 1)
    up = limited_flux(solved, w, mask_w, 2)
    change = -(east - east.roll(1, 0)) - (north - north.roll(1, 1)) - (up - up.roll(1, 2))
    result = solved + 0.01 * (1.5 * change - 0.5 * tendency)
    tendency.copy_(change)
    return result, viscosity, viscosity / prandtl


@workload(
    "TKE",
    title="pyhpc_turbulent_kinetic_energy",
    structure="fourteen fields as inputs, one of them written in place; a sequential solve over levels",
    **PYHPC,
)
def turbulent_kinetic_energy(setting: Setting) -> Program:
    nx, ny, nz = grid(setting)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        cells = (nx, ny, nz)
        speeds = [draw.normal(*cells) * 0.1 for _ in range(3)]
        positive = [draw.uniform(*cells, low=0.1, high=1.0) for _ in range(5)]
        masks = [(draw.uniform(*cells) > 0.2).to(setting.dtype) for _ in range(3)]
        rest = [draw.normal(nx, ny), draw.uniform(nz, low=0.5, high=2.0), draw.integers(nz, nx, ny)]
        return *speeds, *positive, *masks, *rest

    def drive(call: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        # The tendency comes back through its input.
        return *call_once(call, inputs), inputs[4]

    return Program(turbulence, fresh, drive)
