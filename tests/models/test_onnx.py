"""ONNX models, where onnxruntime is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from models.fleet import FEATURES, document, readings, record_of, values_of

from headrace.errors import ModelError
from headrace.models import Example, Onnx
from headrace.models.document import load
from headrace.models.scoring import scorer

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def graph(features: int = 3, *, double: bool = False, text: bool = False) -> bytes:
    """weights · features, squashed to a probability."""
    helper, types = onnx.helper, onnx.TensorProto
    number = types.STRING if text else types.DOUBLE if double else types.FLOAT
    weights = helper.make_tensor(
        "w", types.DOUBLE if double else types.FLOAT, [features, 1], [0.01, 0.2, 0.03][:features]
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Sigmoid", ["m"], ["y"])]
    if text:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", number, [None, features])],
        [helper.make_tensor_value_info("y", number, [None, features if text else 1])],
        [] if text else [weights],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(("double", "tolerance"), [(False, 1e-6), (True, 1e-12)])
def test_score_is_that_of_the_graph(double: bool, tolerance: float, tmp_path: Path) -> None:
    score = scorer(load(record_of(document(Onnx(graph(double=double)))), tmp_path, FEATURES))
    for reading in readings(100):
        a, b, c = values_of(reading)
        margin = 0.01 * a + 0.2 * b + 0.03 * c
        assert score(reading).value == pytest.approx(1 / (1 + 2.718281828459045**-margin), abs=tolerance)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (graph(2), "not of 3 features"),
        (graph(text=True), "not one row of floats"),
        (graph()[:-30], "the graph cannot be loaded"),
        (b"", "the graph cannot be loaded"),
        (b"\x80\x04\x95pickled", "the graph cannot be loaded"),
    ],
)
def test_graph_that_does_not_fit_is_refused(made: bytes, says: str, tmp_path: Path) -> None:
    examples = (Example((0.0, 0.0, 0.0), 0.5),)
    with pytest.raises(ModelError, match="is refused") as refused:
        load(record_of(document(Onnx(made), examples=examples)), tmp_path)
    assert says in refused.value.reason


def test_examples_are_compared_as_32_bits_allow(tmp_path: Path) -> None:
    for off, is_good in ((1e-7, True), (1e-4, False)):
        made = document(Onnx(graph()), examples=(Example((0.0, 0.0, 0.0), 0.5 + off),))
        if is_good:
            load(record_of(made), tmp_path)
        else:
            with pytest.raises(ModelError, match="instead of"):
                load(record_of(made), tmp_path)


def test_without_onnxruntime_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record: Any = record_of(document(Onnx(graph())))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="onnxruntime is not installed") as refused:
        load(record, tmp_path)
    assert refused.value.remedy == "Install headrace[onnx]."
