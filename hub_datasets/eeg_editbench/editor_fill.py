"""What was behind an object: coarse-to-fine PatchMatch completion joined to its surroundings in the gradient domain.

Patches as in Barnes et al. 2009 and Wexler et al. 2007, the join as in Perez et al. 2003. Patch distances are sums of whole numbers, so
that no thread count or instruction set changes a match.
"""

from __future__ import annotations

import cv2
import numpy as np
from scipy.sparse import coo_matrix, diags
from scipy.sparse.linalg import splu

from .editor_pixels import SIZE, dilate, noise

LEVEL_PRIOR = 900.0  # squared grey levels a patch value: what it costs to copy from a full image height away
SCREEN = 0.003  # pull of the patches' own tone against the tone of the hole's edge: 1 / sqrt(SCREEN) pixels is its reach


def _patches(image: np.ndarray, radius: int) -> np.ndarray:
    """All (2r+1)^2 patches of an (h, w, 3) image, reflected at the border, as rows (h*w, 3*(2r+1)^2) float32 of whole numbers."""
    padded = cv2.copyMakeBorder(image, radius, radius, radius, radius, cv2.BORDER_REFLECT_101)
    side = 2 * radius + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(0, 1))
    return windows.reshape(image.shape[0] * image.shape[1], -1).astype(np.float32)


def _search(now: np.ndarray, source: np.ndarray, targets: np.ndarray, usable: np.ndarray, match: np.ndarray, rng: np.random.Generator,
            radius: int, rounds: int) -> np.ndarray:  # fmt: skip
    """Better matches (h*w,) of the target patches by PatchMatch: neighbours' matches shifted, then random ones at shrinking distance.

    Patches hold whole numbers below 256, so the float32 sums are exact and no thread count can change a decision.
    """
    height, width = now.shape[:2]
    wanted, offered = _patches(now, radius)[targets], _patches(source, radius)
    ty, tx = np.divmod(targets, width)

    def cost(candidate: np.ndarray) -> np.ndarray:
        difference = wanted - offered[candidate]
        rise = (candidate // width - ty) / height
        # Scenes lie in level bands (sky, far shore, ground), so a patch from another height must match better.
        return np.einsum("ij,ij->i", difference, difference) + (LEVEL_PRIOR * wanted.shape[1]) * rise * rise

    best = cost(match[targets])
    for step in range(rounds):
        reach = max(height, width) // 2
        moves: list[tuple[int, int] | int] = [(0, -1), (0, 1), (-1, 0), (1, 0)] if step % 2 == 0 else [(1, 0), (-1, 0), (0, 1), (0, -1)]
        while reach >= 1:
            moves.append(reach)
            reach //= 3
        for move in moves:
            if isinstance(move, tuple):
                ny, nx = np.clip(ty + move[0], 0, height - 1), np.clip(tx + move[1], 0, width - 1)
                cy, cx = np.divmod(match[ny * width + nx], width)
                cy, cx = cy - (ny - ty), cx - (nx - tx)
            else:
                cy, cx = np.divmod(match[targets], width)
                jump = rng.integers(-move, move + 1, size=(2, len(targets)))
                cy, cx = cy + jump[0], cx + jump[1]
            inside = (cy >= 0) & (cy < height) & (cx >= 0) & (cx < width)
            candidate = np.where(inside, cy * width + cx, 0)
            inside &= usable.ravel()[candidate]
            candidate = np.where(inside, candidate, match[targets])
            score = cost(candidate)
            better = score < best
            best = np.where(better, score, best)
            match[targets[better]] = candidate[better]
    return best


def _vote(now: np.ndarray, source: np.ndarray, hole: np.ndarray, match: np.ndarray, cost: np.ndarray, radius: int,
          sharpness: float) -> np.ndarray:  # fmt: skip
    """The hole of `now` repainted: every pixel is the mean of what the patches over it propose, good matches counting most."""
    height, width = hole.shape
    y, x = np.nonzero(hole)
    typical = float(np.percentile(cost[cost > 0], 40)) if (cost > 0).any() else 1.0
    weights = np.maximum(np.exp(-cost * sharpness / (2 * max(typical, 1.0))), 1e-5)
    total, weight = np.zeros((len(y), 3)), np.full((len(y), 1), 1e-12)
    for oy in range(-radius, radius + 1):
        for ox in range(-radius, radius + 1):
            cy, cx = y - oy, x - ox
            inside = (cy >= 0) & (cy < height) & (cx >= 0) & (cx < width)
            centre = np.where(inside, cy * width + cx, 0)
            sy, sx = np.divmod(match[centre], width)
            sy, sx = sy + oy, sx + ox
            inside &= (sy >= 0) & (sy < height) & (sx >= 0) & (sx < width)
            w = (weights[centre] * inside)[:, None]
            total += w * source[np.clip(sy, 0, height - 1), np.clip(sx, 0, width - 1)]
            weight += w
    painted = now.copy()
    painted[hole] = np.rint(total / weight)
    return painted


def _shrink_known(image: np.ndarray, hole: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Image and hole at (side, side): means over known pixels alone; a pixel is hole when any of it was."""
    known = (~hole).astype(np.float32)
    weight = cv2.resize(known, (side, side), interpolation=cv2.INTER_AREA)
    small = cv2.resize(image.astype(np.float32) * known[..., None], (side, side), interpolation=cv2.INTER_AREA)
    return np.rint(small / np.maximum(weight, 1e-6)[..., None]).astype(np.float32), weight < 0.999


def _diffuse(image: np.ndarray, hole: np.ndarray) -> np.ndarray:
    """`image` with its hole filled by ever wider averages of the known pixels: smooth, and never empty."""
    filled, known = image.astype(np.float32), (~hole).astype(np.float32)
    empty = hole.copy()
    for sigma in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
        weight = cv2.GaussianBlur(known, (0, 0), sigma)
        mean = cv2.GaussianBlur(image.astype(np.float32) * known[..., None], (0, 0), sigma) / np.maximum(weight, 1e-6)[..., None]
        reached = empty & (weight > 0.05)
        filled[reached] = mean[reached]
        empty &= ~reached
    return np.rint(filled)


def fill(image: np.ndarray, hole: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rebuild the pixels of `hole` from patches of the rest, coarse to fine, so that texture and structure go on behind the object.

    The method is exemplar-based completion: a nearest-patch field by PatchMatch (Barnes et al. 2009) within the coherence
    optimisation of Wexler et al. (2007). The matches are then joined in the gradient
    domain (Perez et al. 2003). Where too little of the image is left to copy from, it is `fill_smooth`.

    Args:
        image: (224, 224, 3) uint8.
        hole: (224, 224) bool, true where pixels are to be replaced.
        rng: draws the random search.

    Returns:
        (224, 224, 3) uint8, equal to `image` outside the hole.
    """
    painted: np.ndarray | None = None
    for side, radius, rounds in ((28, 2, 10), (56, 2, 4), (112, 3, 2), (SIZE, 2, 1)):
        source, gap = _shrink_known(image, hole, side) if side < SIZE else (image.astype(np.float32), hole)
        usable = ~dilate(gap, radius)
        usable[:radius] = usable[-radius:] = usable[:, :radius] = usable[:, -radius:] = False
        if usable.sum() < 12:
            continue
        if painted is None:
            painted = _diffuse(source, gap)
            choices = np.flatnonzero(usable)
            match = choices[rng.integers(0, len(choices), side * side)]
        else:
            grown = cv2.resize(painted, (side, side), interpolation=cv2.INTER_LINEAR)
            painted = np.where(gap[..., None], np.rint(grown), source)
            match = _grow_match(match, side, usable)
        near = dilate(gap, radius)
        match = np.where(near.ravel(), match, np.arange(side * side))
        targets = np.flatnonzero(near)
        cost = np.zeros(side * side)
        for _ in range({SIZE: 1, 112: 2}.get(side, 3)):
            cost[targets] = _search(painted, source, targets, usable, match, rng, radius, rounds)
            painted = _vote(painted, source, gap, match, cost, radius, sharpness=6.0 if side == SIZE else 1.0)
    if painted is None:
        return fill_smooth(image, hole, rng)
    return np.where(hole[..., None], np.clip(np.rint(_without_seams(image, hole, match, painted)), 0, 255), image).astype(np.uint8)


def _solve(image: np.ndarray, hole: np.ndarray, guide_x: np.ndarray, guide_y: np.ndarray,
           first_guess: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
    """The Poisson blend of a hole: `image` (h, w, 3) outside it, inside it the pixels whose differences come closest to the guides.

    Args:
        image: (h, w, 3) float.
        hole: (h, w) bool with at least one known pixel beside it.
        guide_x: (h, w - 1, 3) wanted difference to the right neighbour.
        guide_y: (h - 1, w, 3) wanted difference to the neighbour below.
        first_guess: (h, w, 3) pixels to stay near to; a step at the hole's edge then fades within some twenty pixels.
    """
    number = np.full(hole.shape, -1)
    number[hole] = np.arange(hole.sum())
    size = int(hole.sum())
    diagonal, rhs = np.zeros(size), np.zeros((size, 3))
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    for first, second, guide in (
        (np.s_[:, :-1], np.s_[:, 1:], guide_x),
        (np.s_[:-1], np.s_[1:], guide_y),
    ):
        for here, there, sign in ((first, second, -1.0), (second, first, 1.0)):
            me, other = number[here], number[there]
            mine = me >= 0
            np.add.at(diagonal, me[mine], 1.0)
            np.add.at(rhs, me[mine], sign * guide[mine])
            known = mine & (other < 0)
            np.add.at(rhs, me[known], image[there][known].astype(np.float64))
            both = mine & (other >= 0)
            rows.append(me[both])
            columns.append(other[both])
    if first_guess is not None:
        diagonal += SCREEN
        rhs += SCREEN * first_guess[hole]
    row, column = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_matrix((np.full(len(row), -1.0), (row, column)), shape=(size, size)) + diags(diagonal)
    solved = image.astype(np.float64)
    solved[hole] = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A").solve(rhs)
    return solved


def _without_seams(image: np.ndarray, hole: np.ndarray, match: np.ndarray, painted: np.ndarray) -> np.ndarray:
    """The fill redrawn in the gradient domain: the copied patches' own differences, so that no step in tone stays between them."""
    height, width = hole.shape
    source = image.astype(np.float64)
    my, mx = (part.reshape(height, width) for part in np.divmod(match, width))

    def step(dy: int, dx: int) -> np.ndarray:
        forward = source[np.clip(my + dy, 0, height - 1), np.clip(mx + dx, 0, width - 1)] - source[my, mx]
        backward = source[my, mx] - source[np.clip(my - dy, 0, height - 1), np.clip(mx - dx, 0, width - 1)]
        return (forward[: height - dy, : width - dx] + backward[dy:, dx:]) / 2

    return _solve(source, hole, step(0, 1), step(1, 0), painted)


def fill_smooth(image: np.ndarray, hole: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fill a hole before an out-of-focus background, where there is no texture to copy: a membrane over it with soft blots of light.

    Args and result are those of `fill`.
    """
    height, width = hole.shape
    membrane = _solve(image.astype(np.float64), hole, np.zeros((height, width - 1, 3)), np.zeros((height - 1, width, 3)))
    inner = cv2.distanceTransform(np.pad(hole, 1, mode="edge").astype(np.uint8), cv2.DIST_L2, 5)[1:-1, 1:-1]
    blots = (noise(rng, 90, 2) - 0.5)[..., None] * np.array([34, 30, 28]) + rng.normal(0, 1.5, (height, width, 1))
    painted = membrane + blots * np.clip(inner / 30, 0, 1)[..., None]
    return np.where(hole[..., None], np.clip(np.rint(painted), 0, 255), image).astype(np.uint8)


def _grow_match(match: np.ndarray, side: int, usable: np.ndarray) -> np.ndarray:
    """A match field of half the side carried to `side`; matches that land on unusable pixels move to the nearest usable one."""
    half = side // 2
    y, x = np.divmod(np.arange(side * side), side)
    my, mx = np.divmod(match[(y // 2) * half + x // 2], half)
    carried = (my * 2 + y % 2) * side + mx * 2 + x % 2
    _, labels = cv2.distanceTransformWithLabels((~usable).astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    owner = np.zeros(labels.max() + 1, np.int64)
    owner[labels[usable]] = np.flatnonzero(usable)
    return owner[labels.ravel()[carried]]
