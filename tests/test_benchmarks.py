"""How the comparison with peers counts, and that it does not pass over what was not measured or came out wrong."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest
from compare import harness, report
from compare.harness import Figures, Job, LeftOut, System, Trials
from compare.report import Column, Goal, Table

from headrace.testing import wait_until

COLUMNS = {"p99": Column("p99 ms", "less"), "rate": Column("records/s", "more"), "wrong": Column("wrong")}


def system(name: str) -> System:
    return System(name, lambda job: [], told="")


def table(goals: list[Goal] | None = None, limits: tuple[str, ...] = (), **figures: Figures) -> Table:
    trials = Trials({name.replace("_", " "): [each] for name, each in figures.items()}, {})
    return Table("t", "A table", "About it.", COLUMNS, trials, goals=goals or [], limits=limits)


def test_percentiles_are_of_all_samples() -> None:
    found = harness.percentiles([float(number) for number in range(1000, 0, -1)])
    assert found == {"p50": 501.0, "p90": 901.0, "p99": 991.0, "p99.9": 1000.0, "max": 1000.0}
    assert harness.percentiles([3.0])["p99.9"] == 3.0


def test_systems_take_turns_and_who_begins_changes() -> None:
    order = []
    found = harness.in_turns(
        [system("a"), system("b")], lambda each: order.append(each.name) or {"x": len(order)}, 3, lambda text: None
    )
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found.medians() == {"a": {"x": 4.0}, "b": {"x": 3.0}}


@pytest.mark.parametrize("error", [RuntimeError("it broke"), LeftOut("no such program")])
def test_system_that_fails_is_told_and_the_others_go_on(error: Exception) -> None:
    def trial(each: System) -> Figures:
        if each.name == "b":
            raise error
        return {"p99": 1.0}

    found = harness.in_turns([system("a"), system("b")], trial, 2, lambda text: None)
    assert len(found.figures["a"]) == 2
    assert str(error) in found.failures["b"]
    assert list(found.medians()) == ["a"]
    assert not Table("t", "", "", COLUMNS, found).is_whole


def test_table_with_a_wrong_result_is_not_whole() -> None:
    assert table(Headrace={"p99": 1.0, "wrong": 0}).is_whole
    assert not table(Headrace={"p99": 1.0, "wrong": 0}, Flink={"p99": 1.0, "wrong": 1}).is_whole


def test_goals_are_against_the_best_peer_and_not_the_limit() -> None:
    made = table(
        [Goal("p99", 1.0), Goal("rate", 1.0), Goal("p99", 8.0, against=""), Goal("p99", 2.0, against="Go")],
        ("no work",),
        Headrace={"p99": 9.0, "rate": 200.0},
        Flink={"p99": 10.0, "rate": 250.0},
        Go={"p99": 4.0, "rate": 100.0},
        no_work={"p99": 1.0, "rate": 999.0},
    )
    assert made.verdicts() == [
        (False, "p99 ms: 2.25 × Go (goal: at most 1)"),
        (False, "records/s: 0.80 × Flink (goal: at least 1)"),
        (False, "p99 ms: 9 (goal: at most 8)"),
        (False, "p99 ms: 2.25 × Go (goal: at most 2)"),
    ]
    made = table([Goal("p99", 1.0), Goal("rate", 1.0)], Headrace={"p99": 1, "rate": 9}, Go={"p99": 2, "rate": 9})
    assert [reached for reached, _ in made.verdicts()] == [True, True]


def test_page_keeps_what_is_written_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"Before.\n\n{report.BEGIN}\n{report.END}\n\nAfter.\n")
    made = table([Goal("p99", 1.0)], Headrace={"p99": 2.5, "rate": 1}, Flink={"p99": 5.0, "rate": 12_345.6})
    made.trials.failures["Quix"] = "no such program\nand more"
    report.write(page, [made], {"Flink": ["as it comes", "two slots"]})
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "| [A table](#a-table) | p99 ms: 0.50 × Flink (goal: at most 1) | reached |" in text
    assert "| **Headrace** | 2.50 | 1 | – |" in text
    assert "| Flink | 5 | 12,346 | – |" in text
    assert "- **Flink**: As it comes. Two slots." in text
    assert "Not measured: Quix. no such program\n" in text
    assert "NOT MEASURED  Quix: no such program" in report.show(made)


def test_page_keeps_the_tables_that_were_not_measured_again(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    first = table([Goal("p99", 1.0)], Headrace={"p99": 2.5}, Flink={"p99": 5.0})
    other = Table(
        "o", "Another: table", "About.", COLUMNS, table(Headrace={"p99": 7.0}).trials, [Goal("p99", 9, "")]
    )
    report.write(page, [first, other], {"Flink": ["as it comes"], "Quix": ["one process"]})
    again = table([Goal("p99", 1.0)], Headrace={"p99": 6.0}, Flink={"p99": 5.0})
    report.write(page, [again], {"Flink": ["as it comes", "two slots"]})
    text = page.read_text()
    assert [row for row in text.splitlines() if row.startswith("| [")] == [
        "| [A table](#a-table) | p99 ms: 1.20 × Flink (goal: at most 1) | **not reached** |",
        "| [Another: table](#another-table) | p99 ms: 7 (goal: at most 9) | reached |",
    ]
    assert [row for row in text.splitlines() if row.startswith("| **Headrace** |")] == [
        "| **Headrace** | 6 | – | – |",
        "| **Headrace** | 7 | – | – |",
    ]
    assert text.endswith(
        f"## What was set\n\n- **Flink**: As it comes. Two slots.\n- **Quix**: One process.\n{report.END}\n"
    )


def test_what_was_under_way_while_the_host_took_time_is_told_apart() -> None:
    host = harness.Host()
    host._spans = [(10.0, 10.1), (20.0, 20.1)]
    due = [9.0, 9.99, 10.05, 11.0, 19.9, 21.0]
    found = host.quiet(due, [2.0, 30.0, 1.0, 4.0, 50.0, 3.0])
    assert found == {"p50_quiet": 4.0, "p99_quiet": 50.0, "quiet": 100 * 4 / 6}


def test_process_is_measured_with_its_children_and_none_is_left(tmp_path: Path) -> None:
    work = "import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    made = System("busy", lambda job: [sys.executable, "-c", work], told="")
    with harness.running(made, Job("alert", "", "", "", tmp_path)) as process:
        wait_until(lambda: process.usage.read() > 0.5, what="half a second of work by the child")
        family = psutil.Process(process._process.pid).children(recursive=True)
        assert family
        assert process.usage.peak_bytes > 2**20
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family)


def test_process_that_ends_by_a_failure_shows_what_it_said(tmp_path: Path) -> None:
    made = System("broken", lambda job: [sys.executable, "-c", "raise SystemExit('no such stream')"], told="")
    with harness.running(made, Job("alert", "", "", "", tmp_path)) as process:
        wait_until(lambda: process.ended, what="its end")
        with pytest.raises(RuntimeError, match="broken has ended with 1\nno such stream"):
            process.check()
    assert time.time() >= process.started
