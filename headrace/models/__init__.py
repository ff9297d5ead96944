"""Models: versioned parameters, trained by Spark pipelines, that score records in services. See docs/models.md.

`app.model` declares one, `app.train` trains it. Here are the kinds, for publishing by hand, and what a training
function needs: `vectors` and `fit_gaussian`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.models.document import Example
from headrace.models.drift import Drift, DriftReport
from headrace.models.gaussian import Gaussian
from headrace.models.kmeans import KMeans
from headrace.models.linear import Linear, Logistic
from headrace.models.model import Model
from headrace.models.onnx import Onnx
from headrace.models.scaling import Scaling
from headrace.models.scoring import Score
from headrace.models.shadow import ShadowReport
from headrace.models.trees import Tree, Trees
from headrace.models.version import Choice, ModelVersion

if TYPE_CHECKING:
    from headrace.models.spark import column, fit_gaussian, vectors

__all__ = [
    "Choice",
    "Drift",
    "DriftReport",
    "Example",
    "Gaussian",
    "KMeans",
    "Linear",
    "Logistic",
    "Model",
    "ModelVersion",
    "Onnx",
    "Scaling",
    "Score",
    "ShadowReport",
    "Tree",
    "Trees",
    "column",
    "fit_gaussian",
    "vectors",
]


def __getattr__(name: str) -> Any:
    if name in ("column", "fit_gaussian", "vectors"):  # what needs Spark is imported when it is used
        return getattr(import_module("headrace.models.spark"), name)
    raise AttributeError(f"module 'headrace.models' has no attribute {name!r}")
