"""Models in ONNX, from any tool that writes it; run by onnxruntime, which comes with `headrace[onnx]`."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from headrace.errors import ModelError
from headrace.models._check import refuse
from headrace.models.kind import Function, Values

_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


class Onnx(msgspec.Struct, frozen=True, tag_field="kind", tag="onnx"):
    """Scores by an ONNX graph of one input, a row of numbers: the last number of its last output."""

    tolerance: ClassVar[float] = 1e-5  # graphs mostly compute in 32 bits

    graph: bytes

    def check(self, features: int) -> None:
        session = self._session()
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _TYPES:
            refuse(f"the graph's inputs are {[each.type for each in inputs]}, not one row of floats")
        shape = inputs[0].shape
        if len(shape) != 2 or not (shape[1] in (features, None) or isinstance(shape[1], str)):
            refuse(f"the graph takes rows of the shape {shape}, not of {features} features")

    def function(self) -> Function:
        import numpy as np

        session = self._session()
        (given,) = session.get_inputs()
        name, wanted = given.name, np.dtype(_TYPES[given.type])
        outputs = [session.get_outputs()[-1].name]

        def score(values: Values) -> float:
            (found,) = session.run(outputs, {name: np.array([values], wanted)})
            return float(found.reshape(-1)[-1])

        return score

    def _session(self) -> Any:
        try:
            import onnxruntime
        except ImportError:
            raise ModelError(
                "An ONNX model needs onnxruntime, which is not installed.",
                remedy="Install headrace[onnx].",
                reason="onnxruntime is not installed",
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one row is too little to share out
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(self.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            refuse(f"the graph cannot be loaded: {str(error).splitlines()[0].rstrip('.')}")
