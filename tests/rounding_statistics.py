"""Experiments with the stochastic rounding of a package: `tbe_kernels`, or a copy of it with a fault planted.

Each tells a `Trial` what it saw. Two of them are exact: the noise is Philox, and with given noise the rounding is what
arithmetic says; together they prove the probabilities as far as Philox is random. The others assume neither and look at
what comes out, of the helpers and of whole backward passes.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from corpus.tensors import BatchTensors, random_bits
from oracles import interpreter
from oracles.values.interval import FORMATS, neighbours
from tests.chance import Trial, shifts

HALVES = (torch.float16, torch.bfloat16)
NOISE_BITS = 30
SEED = 20261107


@triton.jit
def _noise_kernel(out, seed, iteration, first, N, NOISE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    noise = NOISE(tl.load(seed), tl.load(iteration), tl.load(first) + at)
    tl.store(out + at, noise, mask=at < N)


@triton.jit
def _round_kernel(out, x, noise, N, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    value, chance = tl.load(x + at, mask=inside, other=0.0), tl.load(noise + at, mask=inside, other=0)
    tl.store(out + at, ROUND(value, chance, out.dtype.element_ty), mask=inside)


class Rounding:
    """A package's rounding on a device."""

    def __init__(self, package: ModuleType, device: torch.device) -> None:
        self.package, self.device = package, device
        self.block = 2**17 if device.type == "cpu" else 1024  # the interpreter minds programs, not elements
        if device.type == "cpu":
            interpreter.install()

    def noise(self, seed: int, iteration: int, first: int, count: int) -> Tensor:
        """The noise of `count` elements from `first` on: int32 `[count]`, on the CPU."""
        out = torch.empty(count, dtype=torch.int32, device=self.device)
        given = [torch.tensor([n], dtype=torch.int64, device=self.device) for n in (seed, iteration, first)]
        with np.errstate(all="ignore"):
            _noise_kernel[(triton.cdiv(count, self.block),)](
                out, *given, count, NOISE=self.package.rounding.rounding_noise, BLOCK=self.block
            )
        return out.cpu()

    def round(self, x: Tensor, noise: Tensor, dtype: torch.dtype) -> Tensor:
        """fp32 `[n]` rounded with noise int32 `[n]`, on the CPU."""
        out = torch.empty(x.shape, dtype=dtype, device=self.device)
        with np.errstate(all="ignore"):
            _round_kernel[(triton.cdiv(x.numel(), self.block),)](
                out,
                x.to(self.device),
                noise.to(self.device),
                x.numel(),
                ROUND=self.package.rounding.round_stochastically,
                BLOCK=self.block,
            )
        return out.cpu()

    def module(self, dtype: torch.dtype, **settings: Any) -> Any:
        """Two tables, one of an odd width: SGD with a learning rate of 1."""
        tbe = self.package
        given = {"stochastic_rounding": True, "rounding_seed": SEED, **settings}
        return tbe.TableBatchedEmbeddingBags(
            TABLES, weights_precision=dtype, learning_rate=1.0, device=self.device, **given
        )

    def batch(self, repeats: int, gradient: float) -> BatchTensors:
        """One bag a table that holds each of its rows `repeats` times, all with the same gradient."""
        rows = torch.cat([torch.arange(r).repeat(repeats) for r, _ in TABLES]).to(self.device)
        offsets = torch.tensor([0, TABLES[0][0] * repeats, len(rows)], device=self.device)
        return BatchTensors(rows, offsets, None, torch.full((1, sum(d for _, d in TABLES)), gradient).to(self.device))

    def step(self, module: Any, gradient: float, repeats: int = 1) -> list[Tensor]:
        """Every row of every table, from 1, takes a step of `repeats` times `gradient`: the tables afterwards."""
        batch = self.batch(repeats, gradient)
        module.weights.detach().fill_(1.0)
        with np.errstate(all="ignore"):
            module(batch.indices, batch.offsets).backward(batch.grad_output)
        return self.tables(module)

    def tables(self, module: Any) -> list[Tensor]:
        """The tables as they are now, on the CPU."""
        return [table.detach().cpu().clone() for table in module.split_embedding_weights()]


#: (rows, D) of the module that experiments train.
TABLES = ((8, 256), (6, 129))


def numbers(dtype: torch.dtype) -> Tensor:
    """fp32 numbers: every number of `dtype`, those in the middle between two of them and next to it, bit patterns at
    random, and more around the least normal, the largest and the least number of `dtype`."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(torch.float32)
    bits = every.view(torch.int32)
    half = {torch.float16: 2**12, torch.bfloat16: 2**15}[dtype]
    drawn = torch.from_numpy(random_bits(SEED, 0, 2**17).astype(np.uint32).view(np.int32))
    precision, least, largest = FORMATS[dtype]
    spread = 1 + torch.from_numpy(random_bits(SEED, 1, 2**12) >> np.uint64(11)).to(torch.float64) * 2.0**-53
    around = [spread * 2.0 ** (least + e) for e in (-precision - 30, -precision - 6, -precision, 1 - precision, -3, -1)]
    around += [largest * (1 + (spread - 1.5) * 2.0 ** (1 - precision)), spread * largest]
    edges = torch.cat(around)
    edges = torch.cat((edges, -edges)).to(torch.float32)
    middle = torch.cat((bits + half, bits + half - 1, drawn)).view(torch.float32)
    return torch.cat((every, middle, edges))


def rounded_by_arithmetic(x: Tensor, noise: Tensor, dtype: torch.dtype) -> Tensor:
    """The rounding in fp64: away from zero where the noise and the part that is cut off add up to a whole."""
    wide = x.to(torch.float64)
    below, above = neighbours(wide.abs(), dtype)
    part = torch.where(above > below, (wide.abs() - below) / (above - below), 0.0)
    up = torch.floor(part * 2.0**NOISE_BITS) + noise >= 2.0**NOISE_BITS
    return torch.copysign(torch.where(up, above, below), wide)


def exact_rounding(rounding: Rounding, trial: Trial) -> None:
    """With given noise, least and largest included, every number is rounded as arithmetic says, and zeros keep their
    sign. So the upper neighbour has exactly its probability, as far as 30 bits of noise resolve it."""
    for dtype in HALVES:
        x = numbers(dtype)
        drawn = torch.from_numpy((random_bits(SEED, 2, len(x)) % np.uint64(2**NOISE_BITS)).astype(np.int32))
        for name, noise in (("no", drawn * 0), ("full", drawn * 0 + 2**NOISE_BITS - 1), ("drawn", drawn)):
            expected, have = rounded_by_arithmetic(x, noise, dtype), rounding.round(x, noise, dtype)
            number = ~expected.isnan()
            trial.equal(f"{dtype}, {name} noise, NaN", expected.isnan(), have.isnan())
            trial.equal(f"{dtype}, {name} noise", expected[number], have.to(torch.float64)[number])
            trial.equal(f"{dtype}, {name} noise, sign", expected.signbit()[number], have.signbit()[number])


def philox(seed: int, iteration: int, element: int) -> int:
    """The first word of Philox4x32-10 (Salmon and others, Parallel random numbers: as easy as 1, 2, 3; 2011)."""
    low = 2**32 - 1
    c = [element & low, element >> 32 & low, iteration & low, iteration >> 32 & low]
    key = [seed & low, seed >> 32 & low]
    for _ in range(10):
        one, two = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [two >> 32 ^ c[1] ^ key[0], two & low, one >> 32 ^ c[3] ^ key[1], one & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return c[0]


def exact_noise(rounding: Rounding, trial: Trial) -> None:
    """The noise is the top of Philox's first word, with all 64 bits of seed, iteration and element."""
    for seed in (0, 1, -1, 2**40 + 3, -(2**63)):
        for iteration in (1, 2, 2**33 + 1):
            for first in (0, 2**32 - 4, 2**40):
                expected = [philox(seed, iteration, first + i) >> 32 - NOISE_BITS for i in range(8)]
                have = rounding.noise(seed, iteration, first, 8)
                trial.equal(f"seed {seed}, iteration {iteration}", torch.tensor(expected, dtype=torch.int32), have)


def shares(rounding: Rounding, trial: Trial) -> None:
    """The upper neighbour comes up as often as it has to: from normal and subnormal numbers, next to zero and to the
    largest finite one, of either sign, as close to certainty as 2 ** -13; and never for what needs no rounding."""
    most = 2**20
    for dtype in HALVES:
        precision, least, largest = FORMATS[dtype]
        noises = [rounding.noise(SEED + sign, 1, 0, most) for sign in range(2)]
        tiny, wide = 2.0 ** (least + 1 - precision), 2.0 ** (math.frexp(largest)[1] - precision)
        places = ((1.0, 2.0 ** (1 - precision)), (3 * tiny, tiny), (0.0, tiny), (largest - wide, wide))
        for number, (lower, unit) in enumerate(places):
            for p in (0.0, 2.0**-13, 0.25, 0.5, 1 - 2.0**-13):
                count = 2**16 if p in (0.25, 0.5) else most  # rare events take more looks
                x = torch.full((count,), (lower + p * unit) * (-1) ** number)
                rounded = rounding.round(x, noises[number % 2][:count], dtype).to(torch.float64).abs()
                up, stayed = int((rounded == lower + unit).sum()), int((rounded == lower).sum())
                name = f"{dtype}, {float(x[0])!r}"
                trial.count(f"{name} to a neighbour", up + stayed, count)
                if p:
                    trial.share(f"{name} away from zero", up, count, p)
                else:
                    trial.count(f"{name} away from zero", up, 0)


def independent_noise(rounding: Rounding, trial: Trial) -> None:
    """Each bit of the noise is fair, and independent of its neighbour in the word and of the same bit at other
    elements, iterations and seeds, near by in any direction or 2 ** 32 away."""
    seeds, iterations, elements = 2, 6, 2**13
    words = torch.stack(
        [torch.stack([rounding.noise(SEED + s, 1 + i, 0, elements) for i in range(iterations)]) for s in range(seeds)]
    )
    far = {
        "seed": rounding.noise(SEED + 2**32, 1, 0, elements),
        "iteration": rounding.noise(SEED, 1 + 2**32, 0, elements),
        "element": rounding.noise(SEED, 1, 2**32, elements),
    }
    for place in range(NOISE_BITS):
        bits = (words >> place & 1).bool()
        trial.share(f"bit {place}", int(bits.sum()), bits.numel(), 0.5)
        for shift in shifts(3, (2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 1024, 4096)):
            trial.shifted(f"bit {place} at (seed, iteration, element)", bits, shift)
        differ = bits ^ (words >> (place + 1) % NOISE_BITS & 1).bool()
        trial.share(f"bit {place} and its neighbour differ", int(differ.sum()), differ.numel(), 0.5)
        for axis, word in far.items():
            differ = bits[0, 0] ^ (word >> place & 1).bool()
            trial.share(f"bit {place} and that 2**32 {axis}s on differ", int(differ.sum()), elements, 0.5)


def independent_steps(rounding: Rounding, trial: Trial) -> None:
    """Whole backward passes whose every weight comes to lie half way between two numbers: which one it becomes is
    fair, and independent over columns, rows, tables, steps and seeds."""
    steps, seeds = 8, 2
    for dtype in HALVES:
        unit = 2.0 ** (1 - FORMATS[dtype][0])
        runs = []
        for seed in range(seeds):
            module = rounding.module(dtype, rounding_seed=SEED + seed)
            runs.append([rounding.step(module, -unit / 2) for _ in range(steps)])
        tables = [torch.stack([torch.stack([step[t] for step in run]) for run in runs]) for t in range(len(TABLES))]
        ups = [table.to(torch.float64) > 1 for table in tables]
        for t, up in enumerate(ups):
            off = ~torch.isin(tables[t].to(torch.float64), torch.tensor([1.0, 1.0 + unit], dtype=torch.float64))
            trial.count(f"{dtype}, table {t}, to no neighbour", int(off.sum()), 0)
            trial.share(f"{dtype}, table {t} up", int(up.sum()), up.numel(), 0.5)
            for shift in shifts(4, (2, 3, 4, 8, 16, 32, 64, 128)):
                trial.shifted(f"{dtype}, table {t}, up at (seed, step, row, column)", up, shift)
        rows, columns = (min(sizes) for sizes in zip(*TABLES, strict=True))
        differ = ups[0][:, :, :rows, :columns] ^ ups[1][:, :, :rows, :columns]
        trial.share(f"{dtype}, the same place in both tables differs", int(differ.sum()), differ.numel(), 0.5)


EXPERIMENTS = (exact_rounding, exact_noise, shares, independent_noise, independent_steps)
