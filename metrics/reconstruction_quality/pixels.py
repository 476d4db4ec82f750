"""Measures of a reconstruction that look at pixels alone. Pure functions on arrays.

Images are (h, w, 3) float in [0, 1], the reference first; `fit` makes them as the released code does. Source: Tiwari et al. 2026,
arXiv 2607.12364, section 3 and tables 1, 2 and 12; details from the released code.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps
from scipy import ndimage
from skimage.metrics import structural_similarity

from decodehub.core.statistics import ROUNDING

SIDE = 256
PSNR_OF_EQUAL = 100.0
BINS = 8  # of the colour histogram, each channel
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


def fit(image: Image.Image, side: int = SIDE) -> np.ndarray:
    """(side, side, 3) uint8 of an RGB image: centre crop to a square, Lanczos."""
    return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS))


def mse(reference: np.ndarray, reconstruction: np.ndarray) -> float:
    """Mean squared error, 0 for equal images."""
    return float(np.square(reference - reconstruction).mean())


def psnr(reference: np.ndarray, reconstruction: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB; 100 where the MSE is at most 1e-12, as in the released code."""
    error = mse(reference, reconstruction)
    return PSNR_OF_EQUAL if error <= 1e-12 else float(-10 * np.log10(error))


def ssim(reference: np.ndarray, reconstruction: np.ndarray, window: str = "uniform7") -> float:
    """Structural similarity, mean over channels, at most 1.

    Args:
        reference, reconstruction: the images, at least 11 pixels on each side.
        window: ``"uniform7"`` (7 x 7, sample covariance: tables 1 and 12) or ``"gaussian11"`` (11 x 11, sigma 1.5: table 2).
    """
    if window not in ("uniform7", "gaussian11"):
        raise ValueError(f"window must be 'uniform7' or 'gaussian11', found {window!r}")
    gaussian = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False} if window == "gaussian11" else {}
    return float(structural_similarity(reference, reconstruction, channel_axis=2, data_range=1.0, **gaussian))


def edge_cosine(reference: np.ndarray, reconstruction: np.ndarray) -> float:
    """Cosine of the horizontal and vertical Sobel derivatives of luma.

    NaN for a reference without any edge, which no method has a value of; -1, the worst, where the reconstruction alone has none.
    """
    return _cosine(_edges(reference), _edges(reconstruction), (0.0, 0.0))


def _cosine(x: np.ndarray, y: np.ndarray, rounding: tuple[float, float]) -> float:
    """Cosine of the differences of a reference and a reconstruction, whose norms are zero up to `rounding`."""
    norms = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    if norms[0] <= rounding[0]:
        return float("nan")
    return float(x @ y / (norms[0] * norms[1])) if norms[1] > rounding[1] else -1.0


def _edges(image: np.ndarray) -> np.ndarray:
    luma = np.rint(image @ _LUMA * 255)  # on 8 bit, so that a flat image has exactly none
    return np.concatenate([ndimage.sobel(luma, axis=axis, mode="mirror").ravel() for axis in (0, 1)])


def color_histogram(reference: np.ndarray, reconstruction: np.ndarray) -> float:
    """Intersection of the histograms of 8 x 8 x 8 RGB bins, 0 to 1."""
    return float(np.minimum(_histogram(reference), _histogram(reconstruction)).sum())


def _histogram(image: np.ndarray) -> np.ndarray:
    place = np.minimum((image * BINS).astype(int), BINS - 1).reshape(-1, 3) @ np.array([BINS * BINS, BINS, 1])
    return np.bincount(place, minlength=BINS**3) / len(place)


def pixel_correlation(reference: np.ndarray, reconstruction: np.ndarray) -> float:
    """Pearson's r over all values of all channels ("PixCorr").

    NaN for a reference of one value, which no method has a value of; -1, the worst, where the reconstruction alone has one value.
    """
    x, y = (image.ravel() - image.mean() for image in (reference, reconstruction))
    return _cosine(x, y, (ROUNDING * float(np.linalg.norm(reference)), ROUNDING * float(np.linalg.norm(reconstruction))))
