"""What a user may hand to the commands that predict by mistake: each is counted, named, and refused or left out with a word."""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dflash.cli import app
from dflash.errors import RefusedInput

LENGTHS = [*range(1, 200)] * 3


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


def write(tmp_path, values, kind=None):
    place = tmp_path / "lengths.parquet"
    pl.DataFrame({"length": pl.Series(values, dtype=kind)}).write_parquet(place)
    return place


BAD = {
    "null": ([5, None, 7], "1 left out: missing", "1 of 3 are no lengths, first None in row 2"),
    "zero": ([5, 0, 0], "2 left out: below 1", "2 of 3 are no lengths, first 0 in row 2"),
    "negative": ([5, -3, 7], "1 left out: below 1", "1 of 3 are no lengths, first -3 in row 2"),
    "fractional": ([5.0, 2.5], "1 left out: fractional", "1 of 2 are no lengths, first 2.5 in row 2"),
    "beyond 32 bits": ([5, 2**33], "1 left out: above the limit", "1 of 2 are no lengths, first 8589934592 in row 2"),
    "no number": (["7", "x"], "1 left out: not a number", "1 of 2 are no lengths, first 'x' in row 2"),
}


@pytest.mark.parametrize("kind", BAD)
def test_analysis_leaves_out_what_is_no_length_and_says_how_many(tmp_path, kind):
    values, words, _ = BAD[kind]
    done = run("lengths", write(tmp_path, values), "--json")
    assert done.exit_code == 0
    assert words in done.stderr


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("command", ["boundaries", "compare-plans", "simulate", "advise"])
def test_planning_refuses_what_is_no_length_with_count_and_place(tmp_path, kind, command):
    values, _, words = BAD[kind]
    place, plans = write(tmp_path, values), tmp_path / "plans.yaml"
    plans.write_text("plans: {a: {}}")
    config = tmp_path / "config.yaml"
    config.write_text("data: {path: none}\ntarget: {path: none}")
    arguments = {
        "boundaries": [place],
        "compare-plans": [place, "--plans", plans],
        "simulate": [config, "--set", f"simulation.lengths={place}"],
        "advise": [config, "--lengths", place],
    }
    with pytest.raises(RefusedInput, match=words):
        run(command, *arguments[command])


@pytest.mark.parametrize("command", ["lengths", "boundaries"])
def test_all_lengths_zero_is_an_error(tmp_path, command):
    with pytest.raises(RefusedInput, match=r"3 below 1|3 of 3 are no lengths"):
        run(command, write(tmp_path, [0, 0, 0]))


@pytest.mark.parametrize("command", ["lengths", "boundaries"])
def test_an_empty_file_is_an_error(tmp_path, command):
    with pytest.raises(RefusedInput, match=r"it is empty|holds no lengths"):
        run(command, write(tmp_path, [], pl.Int32))


def test_lengths_above_the_limit_are_counted(tmp_path):
    done = run("lengths", write(tmp_path, LENGTHS), "--limit", 50, "--json")
    assert "447 left out: above the limit" in done.stderr
    with pytest.raises(RefusedInput, match="limit=50: above it are 447 of 597 lengths, the longest 199"):
        run("boundaries", write(tmp_path, LENGTHS), "--limit", 50)


@pytest.mark.parametrize(
    ("boundaries", "words"),
    [
        ("0,50,40,200", "40 after 50 is not ascending"),
        ("0,50,50,200", "50 after 50 is given twice"),
        ("5,50,200", "the first 0"),
        ("0", "at least two numbers"),
        ("-5,50,200", "greater than or equal to 0"),
        ("0,50", "they end below 447 of 597"),
        ("0,1.5,200", "expected whole numbers with commas"),
        ("a,b", "expected whole numbers with commas"),
        ("", "expected whole numbers with commas"),
    ],
)
@pytest.mark.parametrize("command", [("lengths", "--boundaries"), ("boundaries", "--by-hand")])
def test_boundaries_that_do_not_ascend_or_cover_are_refused(tmp_path, command, boundaries, words):
    with pytest.raises(RefusedInput, match=words):
        run(command[0], write(tmp_path, LENGTHS), f"{command[1]}={boundaries}")


def test_more_buckets_than_distinct_lengths_are_refused(tmp_path):
    with pytest.raises(RefusedInput, match="buckets=3: there are 2 distinct lengths"):
        run("boundaries", write(tmp_path, [5, 5, 6]), "--buckets", 3)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("lengths", "--limit", 0), "--limit"),
        (("boundaries", "--buckets", 0), "--buckets"),
        (("boundaries", "--token-budget", 0), "--token-budget"),
        (("boundaries", "--attention", -1), "--attention"),
        (("boundaries", "--attention", "nan"), "--attention"),
    ],
)
def test_a_number_out_of_bounds_is_wrong_usage(tmp_path, command, words):
    done = run(command[0], write(tmp_path, LENGTHS), *command[1:])
    assert done.exit_code == 2
    assert words in done.output


def test_a_budget_below_the_longest_row_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(RefusedInput, match=r"batching.token_budget=10: 567 of 597 rows are longer.*batching.token_budget=199"):
        run("boundaries", write(tmp_path, LENGTHS), "--token-budget", 10)


def test_a_file_of_another_kind_is_refused_with_those_that_will_do(tmp_path):
    place = tmp_path / "lengths.json"
    place.write_text("[1, 2]")
    with pytest.raises(RefusedInput, match=r"of unknown kind; lengths come from .*\.parquet, \.csv, \.npy or \.txt"):
        run("boundaries", place)


def test_costs_of_another_target_are_warned_of_on_the_command_line(small, tmp_path):
    from dflash.predict.costs import write_costs

    from .test_costs import costs_file

    costs, config = tmp_path / "costs.yaml", tmp_path / "config.yaml"
    write_costs(costs, costs_file(small()))
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS, np.int32))
    config.write_text("data: {path: none}\ntarget: {path: another}\nbatching: {token_budget: 4096}\npipeline: {engine: ray}")
    sets = [
        "--set",
        f"simulation.lengths={tmp_path}/lengths.npy",
        "--set",
        f"simulation.costs={costs}",
        "--hours",
        "0.01",
        "--no-lifts",
    ]
    done = run("simulate", config, *sets, "--json")
    assert done.exit_code == 0
    assert "was measured with the target none, the config has another" in done.stderr
