"""Finding the app in a user's file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.cli._load import load_app
from headrace.errors import DefinitionError, HeadraceError, NotFoundError


@pytest.fixture(autouse=True)
def _modules_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def test_load_folder_given_finds_its_app_and_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "shop_names.py").write_text("NAME = 'shop'\n")
    (tmp_path / "app.py").write_text("import headrace as hr\nfrom shop_names import NAME\napp = hr.App(NAME)\n")

    assert load_app(tmp_path).name == "shop"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import json\n\n\njson.loads('{')\n", ["JSONDecodeError", "shop.py:4"]),
        ("def broken(:\n    pass\n", ["SyntaxError", "shop.py:1"]),
        ("raise SystemExit('no')\n", ["SystemExit: no", "shop.py:1"]),
        ("import nowhere\n", ["No module named 'nowhere'", "shop.py:1"]),
        ("x = 1\n", ["shop.py holds no App"]),
        ("import headrace as hr\na, b = hr.App('one'), hr.App('two')\n", ["holds 2 Apps (one, two)"]),
        ("import headrace as hr\nhr.App('a').stream('bad name', bytes)\n", ["'bad name' is not a name"]),
    ],
)
def test_load_unusable_file_says_what_and_where(tmp_path: Path, text: str, said: list[str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(text)

    with pytest.raises(DefinitionError) as refused:
        load_app(file)

    assert all(each in refused.value.message for each in said), refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize("name", ["nowhere.py", "empty", "notes.txt"])
def test_load_no_python_file_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()

    with pytest.raises(NotFoundError) as refused:
        load_app(tmp_path / name)

    assert isinstance(refused.value, HeadraceError)
    assert name in refused.value.message


@pytest.mark.parametrize("name", ["numbers.py", "pyspark.py"])
def test_load_name_of_a_module_that_others_need_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("import headrace as hr\napp = hr.App('shop')\n")

    with pytest.raises(DefinitionError, match="has the name of the module"):
        load_app(tmp_path / name)
