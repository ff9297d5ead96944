"""Declaring models and trainings: what is refused, and where it was declared."""

from __future__ import annotations

from typing import Any

import pytest
from models.fleet import FEATURES, Reading, document, record_of

import headrace as hr
from headrace.errors import DefinitionError, ModelError, NoModelError
from headrace.models.version import Choice, in_order


@pytest.fixture
def app() -> hr.App:
    return hr.App("fleet")


@pytest.fixture
def telemetry(app: hr.App) -> hr.Stream[Reading]:
    return app.stream("telemetry", Reading, key="device")


def test_model_brings_its_streams_once(app: hr.App) -> None:
    assert "models" not in app.streams
    wear = app.model("wear", features=FEATURES)
    app.model("heat", features="temperature", drift=False)
    assert [name for name in app.streams if name.startswith("models")] == [
        "models",
        "models.choices",
        "models.drift",
        "models.shadows",
    ]
    assert wear.declared_at.startswith(__file__)
    assert app.streams["models"].declared_at.startswith(__file__)
    assert app.models["heat"].drift is None


@pytest.mark.parametrize("features", [(), "", ("a", "a"), ("a", 3), ("a-b",)])
def test_model_without_proper_features_is_refused(app: hr.App, features: Any) -> None:
    with pytest.raises(DefinitionError, match="Model 'wear'"):
        app.model("wear", features=features)


@pytest.mark.parametrize("name", ["", "a b", "..", "a/b"])
def test_model_without_a_proper_name_is_refused(app: hr.App, name: str) -> None:
    with pytest.raises(DefinitionError):
        app.model(name, features=FEATURES)


def test_model_declared_twice_is_refused(app: hr.App) -> None:
    app.model("wear", features=FEATURES)
    with pytest.raises(DefinitionError, match="declared twice"):
        app.model("wear", features=FEATURES)


def test_stream_with_the_name_of_the_models_is_refused(app: hr.App) -> None:
    app.stream("models", Reading)
    with pytest.raises(DefinitionError, match="an app with models needs that name"):
        app.model("wear", features=FEATURES)


def test_score_before_there_is_a_version_says_what_to_do(app: hr.App) -> None:
    with pytest.raises(NoModelError, match="has no version yet") as missing:
        app.model("wear", features=FEATURES).score(Reading("d", 1.0, 1.0, 1.0))
    assert (missing.value.status, missing.value.model) == (503, "wear")


def test_training_knows_its_model_sources_and_place(app: hr.App, telemetry: hr.Stream[Reading]) -> None:
    wear = app.model("wear", features=FEATURES)

    @app.train(wear, telemetry, trigger=hr.every("1 hour"), last="2 days")
    def learn(readings: Any) -> Any:
        return readings

    assert app.trainings["learn"] is learn
    assert (learn.model, learn.sources, str(learn.trigger)) == (wear, (telemetry,), "every 1 hour")
    assert learn.declared_at.startswith(__file__)
    assert learn("rows") == "rows"
    with pytest.raises(DefinitionError, match="'learn' is declared twice"):
        app.train(wear, telemetry, trigger=hr.once(), name="learn")(lambda readings: readings)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trigger": hr.realtime()}, "has the trigger in real time"),
        ({"trigger": "hourly"}, "has the trigger hourly"),
        ({"trigger": hr.once(), "last": "a while"}, "last: 'a while'"),
        ({"trigger": hr.once(), "on_drift": True}, "on drift, but only once"),
    ],
)
def test_training_with_impossible_options_is_refused(
    app: hr.App, telemetry: hr.Stream[Reading], options: dict[str, Any], says: str
) -> None:
    wear = app.model("wear", features=FEATURES)
    with pytest.raises(DefinitionError, match=says):
        app.train(wear, telemetry, name="learn", **options)(lambda readings: readings)


def test_training_on_drift_that_nobody_watches_is_refused(app: hr.App, telemetry: hr.Stream[Reading]) -> None:
    wear = app.model("wear", features=FEATURES, drift=False)
    with pytest.raises(DefinitionError, match="drift is not watched"):
        app.train(wear, telemetry, name="learn", trigger=hr.every("1 hour"), on_drift=True)(
            lambda readings: readings
        )


def test_load_of_a_record_that_was_sent_needs_no_log(app: hr.App) -> None:
    wear = app.model("wear", features=FEATURES)
    assert wear.load(record_of(document(version=7))) == 7
    assert wear.score(Reading("d", 2.0, 1.0, 8.0)) == hr.models.Score(3.0, "wear", 7)
    with pytest.raises(ModelError, match="sha256"):
        wear.load(record_of(document(version=8), sha256="0"))
    assert wear.version == 7


def test_training_on_a_stream_without_the_features_is_refused(app: hr.App, telemetry: hr.Stream[Reading]) -> None:
    noise = app.model("noise", features=("temperature", "noise"))
    with pytest.raises(DefinitionError, match="no field 'noise', which model 'noise' needs"):
        app.train(noise, telemetry, trigger=hr.once(), name="learn")(lambda readings: readings)


def test_training_of_nothing_is_refused(app: hr.App, telemetry: hr.Stream[Reading]) -> None:
    wear = app.model("wear", features=FEATURES)
    wrong: Any = ["telemetry"]
    for arguments in ((wear,), ("wear", telemetry), (wear, wrong)):
        with pytest.raises(DefinitionError, match="Training 'learn'"):
            app.train(*arguments, trigger=hr.once(), name="learn")(lambda readings: readings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choice", "order"),
    [
        (None, [5, 4, 3, 2, 1]),
        (Choice("wear"), [5, 4, 3, 2, 1]),
        (Choice("wear", 2, pinned=True), [2]),
        (Choice("wear", 2, until=5), [2, 5, 4, 3, 1]),
        (Choice("wear", 2, until=4), [5, 2, 4, 3, 1]),
    ],
)
def test_order_in_which_versions_may_serve(choice: Choice | None, order: list[int]) -> None:
    assert in_order([1, 2, 3, 4, 5], choice) == order
