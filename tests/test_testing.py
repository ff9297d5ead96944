from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from headrace.app import App
from headrace.settings import Settings
from headrace.testing import wait_until

pytest_plugins = ["pytester"]


def test_wait_until_returns_the_first_true_answer() -> None:
    answers = iter([None, 0, [], "here"])
    assert wait_until(lambda: next(answers)) == "here"


def test_wait_until_time_is_up_fails_naming_the_thing_and_the_last_answer() -> None:
    started = time.monotonic()
    with pytest.raises(
        AssertionError, match=re.escape("the table has not come true within 0.1 s; the last answer was []")
    ):
        wait_until(list, timeout_s=0.1, what="the table")
    assert time.monotonic() - started < 5


def test_wait_until_a_question_that_takes_long_is_asked_less_often() -> None:
    asked = []

    with pytest.raises(AssertionError, match=r"within 0.5 s"):
        wait_until(lambda: asked.append(time.sleep(0.05)), timeout_s=0.5)

    assert 2 <= len(asked) <= 5


def test_unique_name_is_a_valid_stream_name_and_differs_between_tests(
    unique_name: Callable[[str], str], pytester: pytest.Pytester
) -> None:
    app = App("kit")
    assert app.stream(unique_name("purchases"), bytes).name.startswith("purchases-")
    pytester.makepyfile(
        """
        import pytest
        names = set()
        @pytest.mark.parametrize("what", ["a b", "ä/ö", "x" * 300])
        def test_names(unique_name, what):
            from headrace.app import App
            App("kit").stream(unique_name("purchases"), bytes)
            names.add(unique_name("purchases"))
            App(unique_name("app"))
        def test_all_differ():
            assert len(names) == 3
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


@pytest.mark.broker
def test_users_project_with_a_test_of_its_own_runs_against_a_real_log(
    headrace_settings: Settings, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(headrace_settings.cache))  # its home is another one
    pytester.makepyfile(
        shop="""
        import headrace as hr

        app = hr.App("shop")

        class Purchase(hr.Record):
            id: str
            customer: str

        purchases = app.stream("purchases", Purchase, key="customer")
        """,
        test_shop="""
        from shop import Purchase
        from headrace.testing import ManualClock, wait_until

        def test_purchase_is_read_back(headrace_app, unique_name):
            stream = headrace_app.stream(unique_name("purchases"), Purchase, key="customer")
            headrace_app.create()
            stream.publish(Purchase(id="p-1", customer="ann")).result()
            with headrace_app.consumer(stream, until="end") as messages:
                assert [message.record.id for message in messages] == ["p-1"]
            assert wait_until(lambda: headrace_app.site.admin().describe(stream.name).records == 1)

        def test_another_test_has_the_same_log(headrace_app, headrace_settings):
            assert any(name.startswith("purchases-") for name in headrace_app.site.admin().names())
            assert headrace_app.settings is headrace_settings
        """,
    )
    result = pytester.runpytest_subprocess("-q", "-W", "error")
    result.assert_outcomes(passed=2)


def test_plugin_when_no_test_asks_starts_no_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_nothing():
            assert "headrace.substrate.site" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(passed=1)
    assert not list(pytester.path.rglob(".headrace"))
