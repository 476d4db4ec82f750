"""Preprocessing recipes for iEEG windows: a chain of named stages, its hash, and the benchmark track that it belongs to.

A recipe is data. What a stage does is in :mod:`.multi_stft` and :mod:`.waveform`; :mod:`.session_features` runs a chain over a recording.
The track is derived from the chain, never from a name: a chain that differs anywhere from what a track asks for is "Custom".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodehub.core.files import sha256_json
from decodehub.core.words import suggest

MULTI_STFT, WAVEFORM, CUSTOM = "Multi-STFT", "Waveform", "Custom"
MULTI_STFT_CORRECTED, WAVEFORM_CORRECTED = "Multi-STFT (corrected)", "Waveform (corrected)"
TRACKS = (MULTI_STFT, WAVEFORM, MULTI_STFT_CORRECTED, WAVEFORM_CORRECTED, CUSTOM)

# Harmonics of 60 Hz that the reference removes in every data set, the one recorded under 50 Hz mains included.
NOTCH_60 = (60.0, 120.0, 180.0, 240.0, 300.0, 360.0)
# (window in seconds, lowest and highest frequency kept in Hz): 1,024, 512 and 256 samples at 2,048 Hz; 500, 250 and 125 at 1,000 Hz.
STFT_BANDS = ((0.5, 2.0, 40.0), (0.25, 20.0, 150.0), (0.125, 80.0, 250.0))
SLICINGS = ("ceil", "legacy_floor")
SCOPES = ("window", "context", "recording")
NORMALISATIONS = ("channel_frequency", "sample_channel_time", "global_robust", "sample_channel", "none")


def _number(low: float, *, optional: bool = False) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return (optional and value is None) or (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > low
        )

    return check


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == v and type(value) is type(v) for v in values)


def _notches(value: Any) -> bool:
    return value == "line" or (isinstance(value, (list, tuple)) and all(map(_number(0), value)))


def _bands(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(
            isinstance(band, (list, tuple)) and len(band) == 3 and _number(0)(band[0]) and all(map(_number(-1e-9), band[1:]))
            for band in value
        )
    )


# What each stage takes: the default of every setting, and what values are well formed.
_SETTINGS: dict[str, dict[str, tuple[Any, Callable[[Any], bool]]]] = {
    "context": {"seconds": (15.0, _number(0)), "padding": ("reflect", _one_of("reflect"))},
    "filter": {
        "notch_hz": (NOTCH_60, _notches),
        "notch_q": (30.0, _number(0)),
        "notch_phase": ("causal", _one_of("causal", "zero")),
        "highpass_hz": (None, _number(0, optional=True)),
        "highpass_order": (4, _one_of(1, 2, 3, 4, 5, 6, 7, 8)),
        "scope": ("window", _one_of(*SCOPES)),
    },
    "crop": {},
    "laplacian": {"neighbours": ("stem_plus_minus_1", _one_of("stem_plus_minus_1")), "drop_isolated": (True, _one_of(True, False))},
    "stft": {
        "bands": (STFT_BANDS, _bands),
        "hop_s": (0.0625, _number(0)),
        "window": ("hann", _one_of("hann")),
        "padding": ("reflect", _one_of("reflect")),
        "output": ("magnitude", _one_of("magnitude", "log_magnitude")),
    },
    "resample": {"sfreq": (500.0, _number(0))},
    "normalise": {
        "mode": ("channel_frequency", _one_of(*NORMALISATIONS)),
        "eps": (1e-8, _number(0)),
        "reservoir": (1_000_000, lambda v: isinstance(v, int) and v > 0),
        "seed": (0, lambda v: isinstance(v, int) and v >= 0),
    },
}
_USED = {"global_robust": {"mode", "eps", "reservoir", "seed"}}


@dataclass(frozen=True)
class Stage:
    """One step of a chain: its name and every setting, defaults filled in.

    Raises:
        ValueError: a setting of a known stage has a value that it cannot take.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not isinstance(self.settings, Mapping):
            raise ValueError(f"a stage needs a name and a mapping of settings, found {self.name!r} and {self.settings!r}")
        known = _SETTINGS.get(self.name)
        values = dict(self.settings)
        if known is not None:
            for name, value in values.items():
                if name in known and not known[name][1](value):
                    raise ValueError(f"stage {self.name!r}: {name}={value!r} is not a value it can take (default {known[name][0]!r})")
            values = {name: default for name, (default, _) in known.items()} | values
            if self.name == "normalise":
                used = _USED.get(values["mode"], {"mode", "eps"} if values["mode"] != "none" else {"mode"})
                values = {name: value for name, value in values.items() if name in used or name not in known}
        object.__setattr__(self, "settings", {name: _plain(values[name]) for name in sorted(values)})

    @property
    def is_known(self) -> bool:
        """Whether this package can run the stage: a known name with known settings only."""
        return self.name in _SETTINGS and set(self.settings) <= set(_SETTINGS[self.name])

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


@dataclass(frozen=True)
class Recipe:
    """A chain of stages and how windows are cut.

    Attributes:
        stages: in the order in which they run.
        slicing: "ceil" (the first sample at or after the start) or "legacy_floor" (the last one at or before it; old results).
        window_s: length of a window in seconds.
    """

    stages: tuple[Stage, ...]
    slicing: str = "ceil"
    window_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ValueError(f"a recipe needs at least one stage, found {self.stages!r}")
        if self.slicing not in SLICINGS:
            raise ValueError(f"slicing must be one of {SLICINGS}, found {self.slicing!r}")
        if not _number(0)(self.window_s):
            raise ValueError(f"window_s must be positive, found {self.window_s!r}")

    @property
    def hash(self) -> str:
        """``"sha256:..."`` of the chain and the slicing; equal recipes have equal hashes, whatever they are called."""
        return sha256_json(self.as_dict())

    @property
    def track(self) -> str:
        """One of `TRACKS`."""
        return track(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `recipe_from` reads."""
        chain = [{"stage": stage.name, **stage.settings} for stage in self.stages]
        return {"chain": chain, "slicing": self.slicing, "window_s": float(self.window_s)}

    def find(self, name: str) -> Stage | None:
        """The first stage of that name, or None."""
        return next((stage for stage in self.stages if stage.name == name), None)


def recipe_from(value: Mapping[str, Any]) -> Recipe:
    """Read a recipe from plain JSON values.

    Args:
        value: ``{"chain": [{"stage": "filter", ...}, ...], "slicing": "ceil", "window_s": 1.0}``.

    Raises:
        ValueError: malformed; what and where.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("chain"), Sequence) or isinstance(value.get("chain"), str):
        raise ValueError('a recipe is a mapping with a list "chain" of stages')
    if unknown := set(value) - {"chain", "slicing", "window_s"}:
        raise ValueError(f"a recipe has the fields chain, slicing and window_s, found also {sorted(unknown)}")
    stages = []
    for i, item in enumerate(value["chain"]):
        if not isinstance(item, Mapping) or not isinstance(item.get("stage"), str):
            raise ValueError(f'chain[{i}] must be a mapping with a "stage", found {item!r}')
        try:
            stages.append(Stage(item["stage"], {k: v for k, v in item.items() if k != "stage"}))
        except ValueError as error:
            raise ValueError(f"chain[{i}]: {error}") from None
    return Recipe(tuple(stages), value.get("slicing", "ceil"), value.get("window_s", 1.0))


def track(recipe: Recipe) -> str:
    """The benchmark track of a recipe.

    Multi-STFT asks for the exact chain filter, Laplacian, STFT, normalisation. Waveform asks for one filter with a .5 Hz high-pass
    and the standard notches, one Laplacian that drops electrodes without neighbours, at most one resampling, then one known
    normalisation, and no spectral stage. The corrected tracks allow the true line frequency and filtering before windows are cut;
    their scores stand in rows of their own.
    """
    if not all(stage.is_known for stage in recipe.stages) or recipe.window_s != 1.0:
        return CUSTOM
    names = [stage.name for stage in recipe.stages]
    if names == ["filter", "laplacian", "stft", "normalise"]:
        return _multi_stft_track(recipe)
    core = [name for name in names if name not in ("context", "crop")]
    if core in (["filter", "laplacian", "normalise"], ["filter", "laplacian", "resample", "normalise"]):
        return _waveform_track(recipe, names)
    return CUSTOM


def _multi_stft_track(recipe: Recipe) -> str:
    filter_, laplacian, stft, normalise = recipe.stages
    exact = (Stage("laplacian"), Stage("stft"), Stage("normalise"))
    if (laplacian, stft, normalise) != exact:
        return CUSTOM
    if filter_ == Stage("filter"):
        return MULTI_STFT
    settings = {name: filter_[name] for name in ("notch_hz", "notch_phase", "scope")}
    if Stage("filter", settings) != filter_ or filter_["notch_hz"] not in (NOTCH_60, "line"):
        return CUSTOM
    sound = filter_["scope"] == "recording" or (filter_["scope"], filter_["notch_phase"]) == ("window", "causal")
    return MULTI_STFT_CORRECTED if sound else CUSTOM


def _waveform_track(recipe: Recipe, names: list[str]) -> str:
    filter_ = recipe.find("filter")
    context, normalise = recipe.find("context"), recipe.find("normalise")
    assert filter_ is not None and normalise is not None
    by_context = names[:3] == ["context", "filter", "crop"] and filter_["scope"] == "context" and context == Stage("context")
    by_recording = "context" not in names and "crop" not in names and filter_["scope"] == "recording"
    if recipe.find("laplacian") != Stage("laplacian") or filter_["highpass_hz"] != 0.5 or filter_["notch_q"] != 30.0:
        return CUSTOM
    if normalise["mode"] == "channel_frequency" or not (by_context or by_recording):
        return CUSTOM
    if by_context and filter_["notch_hz"] in (NOTCH_60, NOTCH_60[:3]):
        return WAVEFORM
    if filter_["notch_hz"] in (NOTCH_60, NOTCH_60[:3], "line"):
        return WAVEFORM_CORRECTED
    return CUSTOM


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, (list, tuple)) else value


def _waveform(filter_: Mapping[str, Any], mode: str) -> Recipe:
    return Recipe(
        (
            Stage("context"),
            Stage("filter", {"scope": "context", "highpass_hz": 0.5, **filter_}),
            Stage("crop"),
            Stage("laplacian"),
            Stage("resample"),
            Stage("normalise", {"mode": mode}),
        )
    )


def _stft(filter_: Mapping[str, Any], mode: str = "channel_frequency", **stft: Any) -> Recipe:
    return Recipe((Stage("filter", filter_), Stage("laplacian"), Stage("stft", stft), Stage("normalise", {"mode": mode})))


# The recipes that have a name. The first and third are the published baselines; the fact that a name is used enters no hash.
RECIPES: dict[str, Recipe] = {
    "multi-stft": _stft({}),
    "multi-stft-corrected": _stft({"notch_hz": "line", "scope": "recording"}),
    "wav-hpf-robust": _waveform({}, "global_robust"),
    "wav-hpf-robust-corrected": _waveform({"notch_hz": "line"}, "global_robust"),
    "multi-stft-zscore": _stft({}, "sample_channel_time"),
    "multi-stft-unnormalised": _stft({}, "none"),
    "single-stft": _stft({}, bands=((0.25, 0.0, 150.0),)),
    "wav-hpf-zscore": _waveform({}, "sample_channel"),
    "wav-nohpf-robust": _waveform({"highpass_hz": None}, "global_robust"),
}


def named_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    if name not in RECIPES:
        raise ValueError(
            f"no recipe is called {name!r}; there are {', '.join(RECIPES)} (or give the path of a JSON file){suggest(name, RECIPES)}"
        )
    return RECIPES[name]
