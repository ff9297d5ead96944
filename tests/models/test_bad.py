"""Bad models: each way to be bad is refused with its reason, before anything is scored."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from models.fleet import FEATURES, Reading, document, kinds, random_tree, record_of

from headrace.errors import ModelError
from headrace.models import Example, Gaussian, KMeans, Linear, Logistic, Scaling, Tree, Trees
from headrace.models.document import MAX_BYTES, Document, digest, encode, load
from headrace.models.drift import Baseline, Bins
from headrace.models.version import ModelVersion

NAN, INF = float("nan"), float("inf")
Make = Callable[[int], ModelVersion]
EXAMPLES = (Example((0.0, 0.0, 0.0), 0.0),)


def changed(version: int, change: Callable[[dict[str, Any]], Any], parameters: Any = None) -> ModelVersion:
    """A version whose file was changed, with a sha256 that says it is right."""
    made = document(parameters, version=version)
    content = json.loads(encode(made))
    change(content)
    return record_of(made, json.dumps(content).encode())


def parameters(wrong: Any) -> Make:
    """A version with these parameters, as if whoever wrote it had checked nothing."""

    def make(version: int) -> ModelVersion:
        return record_of(document(wrong, version=version, examples=EXAMPLES))

    return make


def edited(change: Callable[[dict[str, Any]], Any], of: str = "linear") -> Make:
    return lambda version: changed(version, change, kinds()[of])


def recorded(**changes: Any) -> Make:
    return lambda version: record_of(document(version=version), **changes)


def tree(**changes: Any) -> Make:
    columns = {
        "feature": (0, -1, -1),
        "threshold": (1.0, 0.0, 0.0),
        "left": (1, 0, 0),
        "right": (2, 0, 0),
        "value": (0.0, 1.0, 2.0),
        **changes,
    }
    return parameters(Trees((Tree(**columns),), (1.0,)))


def baseline(bins: Bins, rows: int = 10) -> Make:
    good = Bins((0.0,), (0.5, 0.5))
    made = Baseline(rows, (good, good, bins), good)
    return lambda version: record_of(document(version=version, baseline=made))


COVARIANCE = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
BAD: dict[str, tuple[Make, str]] = {
    # The file.
    "truncated": (
        lambda n: record_of(document(version=n), encode(document(version=n))[:-20]),
        "does not read as a model",
    ),
    "empty": (lambda n: record_of(document(version=n), b""), "does not read as a model"),
    "not JSON": (lambda n: record_of(document(version=n), b"\x80\x04\x95pickled"), "does not read as a model"),
    "a list": (lambda n: record_of(document(version=n), b"[1, 2, 3]"), "does not read as a model"),
    "deeply nested": (lambda n: record_of(document(version=n), b"[" * 50_000), "does not read as a model"),
    "wrong sha": (recorded(sha256="0" * 64), "its sha256 is"),
    "one bit changed": (
        lambda n: record_of(
            document(version=n), document=encode(document(version=n)).decode().replace("0.5", "0.4")
        ),
        "its sha256 is",
    ),
    "huge": (recorded(size_bytes=MAX_BYTES + 1), "more than"),
    "file missing": (recorded(document=None), "cannot be read"),
    "file elsewhere": (recorded(document=None, file="../../etc/passwd"), "outside of the models' folder"),
    # What it says it is.
    "unknown format": (edited(lambda c: c.update(format=99)), "its format is 99"),
    "unknown kind": (edited(lambda c: c["parameters"].update(kind="magic")), "does not read as a model"),
    "kind missing": (edited(lambda c: c["parameters"].pop("kind")), "does not read as a model"),
    "other kind than recorded": (recorded(kind="kmeans"), "the record says 'kmeans'"),
    "another kind's parameters": (edited(lambda c: c["parameters"].update(kind="kmeans")), "does not read as"),
    "other model": (edited(lambda c: c.update(model="other")), "is of version"),
    "other version": (edited(lambda c: c.update(version=77)), "is of version 77"),
    "wrong features": (
        lambda n: record_of(document(version=n, features=("temperature", "load", "noise"))),
        "the app declares",
    ),
    "features in another order": (
        lambda n: record_of(document(version=n, features=FEATURES[::-1])),
        "the app declares",
    ),
    "other features than recorded": (recorded(features=["a", "b", "c"]), "the record .'a', 'b', 'c'"),
    "too few features": (
        lambda n: record_of(document(Linear((1.0, 2.0)), version=n, features=FEATURES[:2])),
        "the app declares",
    ),
    "parameters missing": (edited(lambda c: c.pop("parameters")), "missing required field `parameters`"),
    # Numbers.
    "NaN weight": (parameters(Linear((NAN, 0.0, 0.0))), "does not read as a model"),
    "null weight": (edited(lambda c: c["parameters"].update(weights=[None, 1, 1])), "does not read as a model"),
    "text weight": (edited(lambda c: c["parameters"].update(weights=["1", 1, 1])), "does not read as a model"),
    "infinite weight": (
        lambda n: record_of(
            document(version=n), encode(document(version=n)).replace(b'"weights":[0.5', b'"weights":[1e999')
        ),
        "does not read as a model|is inf",
    ),
    "NaN token": (
        lambda n: record_of(
            document(version=n), encode(document(version=n)).replace(b'"weights":[0.5', b'"weights":[NaN')
        ),
        "does not read as a model",
    ),
    "too few weights": (parameters(Linear((1.0, 2.0))), "weights has 2 numbers instead of 3"),
    "too many weights": (parameters(Logistic((1.0,) * 4)), "weights has 4 numbers instead of 3"),
    "scaling of another length": (
        parameters(Linear((1.0,) * 3, 0.0, Scaling((0.0,), (1.0,)))),
        "the scaling's mean has 1 numbers",
    ),
    # Shapes.
    "no centres": (parameters(KMeans(())), "there are no centres"),
    "centre of another length": (parameters(KMeans(((1.0, 2.0, 3.0), (1.0, 2.0)))), "centre 1 has 2 numbers"),
    "covariance of another shape": (parameters(Gaussian((0.0,) * 3, COVARIANCE[:2])), "has 2 rows instead of 3"),
    "covariance not symmetric": (
        parameters(Gaussian((0.0,) * 3, ((1.0, 0.5, 0.0), *COVARIANCE[1:]))),
        "is not symmetric",
    ),
    "covariance not positive definite": (
        parameters(Gaussian((0.0,) * 3, ((1.0, 2.0, 0.0), (2.0, 1.0, 0.0), COVARIANCE[2]))),
        "is not positive definite",
    ),
    "constant feature": (
        parameters(Gaussian((0.0,) * 3, (COVARIANCE[0], COVARIANCE[1], (0.0, 0.0, 0.0)))),
        "is not positive definite",
    ),
    "no trees": (parameters(Trees((), ())), "there are no trees"),
    "tree without nodes": (parameters(Trees((Tree((), (), (), (), ()),), (1.0,))), "has no nodes"),
    "trees without weights": (
        lambda n: parameters(Trees((random_tree(random.Random(1), 2),), ()))(n),
        "1 trees with 0 weights",
    ),
    "child out of range": (tree(right=(9, 0, 0)), "node 0 has the child 9"),
    "child before its parent": (tree(left=(-1, 0, 0)), "node 0 has the child -1"),
    "tree in a circle": (tree(feature=(0, 0, -1), left=(1, 0, 0), right=(2, 2, 0)), "node 1 has the child 0"),
    "feature that does not exist": (tree(feature=(3, -1, -1)), "asks for feature 3 of 3"),
    "columns of different length": (tree(value=(1.0,)), "3 nodes, but 1 in 'value'"),
    "unknown link": (edited(lambda c: c["parameters"].update(link="cubic"), "trees"), "does not read as a model"),
    "edges that do not ascend": (baseline(Bins((1.0, 1.0), (0.1, 0.2, 0.7))), "do not ascend"),
    "shares that do not fit": (baseline(Bins((1.0,), (1.0,))), "1 edges and the shares"),
    "baseline of no rows": (baseline(Bins((1.0,), (0.5, 0.5)), rows=0), "0 rows"),
    # Examples.
    "golden examples off": (
        lambda n: record_of(document(version=n, examples=(Example((1.0, 1.0, 1.0), 1.625 + 1e-6),))),
        "gets the score 1.625 instead of 1.625001",
    ),
    "example of another length": (
        lambda n: record_of(document(version=n, examples=(Example((1.0,), 1.0),))),
        "example 0 has 1 numbers",
    ),
    "no examples": (lambda n: record_of(document(version=n, examples=())), "no examples"),
    "example that overflows": (
        lambda n: record_of(
            document(Linear((1e308, 1e308, 0.0)), version=n, examples=(Example((9.0, 9.0, 9.0), 1.0),))
        ),
        "gets the score inf",
    ),
    "ONNX that is none": (
        edited(lambda c: c.update(parameters={"kind": "onnx", "graph": "bm8gZ3JhcGg="})),
        "the graph cannot be loaded|is of the kind 'onnx'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_model_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    make, says = BAD[name]
    with pytest.raises(ModelError, match="is refused") as refused:
        load(make(3), tmp_path, FEATURES)
    error = refused.value
    assert (error.model, error.version, error.exit_code) == ("wear", 3, 9)
    assert re.search(says, error.reason), error.reason


@pytest.mark.parametrize(
    "name", ["golden examples off", "covariance not symmetric", "feature that does not exist"]
)
def test_without_the_check_a_bad_model_would_serve(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is the check that refuses, not something before it."""
    monkeypatch.setattr(Document, "check", lambda document: document.parameters.function())
    assert load(BAD[name][0](3), tmp_path, FEATURES).version == 3


def test_good_model_of_each_kind_passes_the_same_checks(tmp_path: Path) -> None:
    for made in kinds().values():
        assert load(record_of(document(made)), tmp_path, FEATURES).function((1.0, 1.0, 1.0)) is not None


def test_file_that_is_larger_than_its_record_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = document()
    (tmp_path / "wear").mkdir()
    (tmp_path / "wear/1.json").write_bytes(encode(made) + b" " * 100)
    monkeypatch.setattr("headrace.models.document.MAX_BYTES", len(encode(made)) + 50)
    with pytest.raises(ModelError, match="its file has"):
        load(record_of(made, document=None), tmp_path)


def test_what_is_published_is_checked_before(headrace_app: Any, unique_name: Callable[[str], str]) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    for wrong in (Linear((1.0,)), KMeans(()), Linear((NAN, 1.0, 1.0)), Gaussian((0.0,) * 3, COVARIANCE[:2])):
        with pytest.raises(ModelError, match="is refused"):
            wear.publish(wrong)
    with pytest.raises(ModelError, match="instead of 99"):
        wear.publish(Linear((1.0, 1.0, 1.0)), examples=[(Reading("d", 1.0, 1.0, 1.0), 99.0)])
    with pytest.raises(ModelError, match="a dict is no model"):
        wear.publish({"weights": [1.0]})
    assert wear.registry.of(wear.name) == {}


def test_file_is_json_and_its_digest_is_the_record_s(headrace_app: Any, unique_name: Callable[[str], str]) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    record = wear.publish(kinds()["gaussian"], metrics={"rows": 3})
    data = (headrace_app.settings.models_folder / record.file).read_bytes()
    assert digest(data) == record.sha256
    content = msgspec.json.decode(data)
    assert (content["parameters"]["kind"], content["metrics"], len(content["examples"])) == (
        "gaussian",
        {"rows": 3},
        3,
    )
