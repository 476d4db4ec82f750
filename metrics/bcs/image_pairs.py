"""The part of an ``evaluate`` metric of pairs of images that takes images of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate

from decodehub.loaders.images import ImageSource, image_list, source

FEATURES = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})


class ImagePairMetric(evaluate.Metric, ABC):
    """What goes to the library's table are content hashes; images are decoded when they are used.

    `_info` of a metric begins with :meth:`_forget` and has the features `FEATURES`.
    """

    @abstractmethod  # `evaluate` takes the first class of a module that is not abstract
    def _compute(self, predictions: list, references: list, *args: Any, **kwargs: Any) -> dict: ...

    def _forget(self) -> None:
        self._sources: dict[str, ImageSource] = {}
        self._rows = 0

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """As in `evaluate`, with images."""
        predictions, references = image_list(predictions, "predictions"), image_list(references, "references")
        sides = {"predictions": predictions, "references": references}
        if len(predictions) != len(references) or not len(references):
            raise ValueError(f"expected as many predictions as references and at least one, found {len(predictions)} and {len(references)}")
        digests = {name: [self._remember(image, name, i) for i, image in enumerate(images)] for name, images in sides.items()}
        super().add_batch(**digests, **kwargs)
        self._rows += len(references)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """As in `evaluate`, with one pair of images."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _remember(self, image: Any, name: str, row: int) -> str:
        found = source(image, f"{name[:-1]} {self._rows + row}")
        self._sources.setdefault(found.digest, found)
        return found.digest

    def _take(
        self, predictions: Sequence[str], references: Sequence[str], names: Mapping[str, Any]
    ) -> tuple[list[ImageSource], list[ImageSource]]:
        """References and predictions as images, once; `names` are columns of n names or None.

        Raises:
            ValueError: a column of another length, or images that were added in another process.
        """
        sources = self._sources
        self._forget()
        n = len(references)
        for name, values in names.items():
            if values is not None and (isinstance(values, str) or len(values) != n):
                raise ValueError(f"{name} must be {n} names, one a pair, found {values if isinstance(values, str) else len(values)}")
        if missing := {*predictions, *references} - set(sources):
            raise ValueError(
                f"{len(missing)} images were added in another process: score there and gather the scores, or add all of them in this one"
            )
        return [sources[digest] for digest in references], [sources[digest] for digest in predictions]
