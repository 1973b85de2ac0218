"""Dashboards and rules: generated, and of metrics that exist; rules do what their tests say."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import promql_parser
import pytest
import yaml
from queried import BOARDS, ROOT, RULES, Asked, generator, grouped, panels, rules, selectors

from tunefarm.exposition import METRICS, Kind

RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
SCRAPED = {"instance", "job"}
"""Labels that Prometheus itself adds."""
EVERYTHING = [*panels(), *rules()]


def counters() -> dict[str, str]:
    """The types in the list for dcgm-exporter, by field."""
    lines = [line for line in (ROOT / "dcgm-counters.csv").read_text().splitlines() if line and line[0] != "#"]
    return {name: kind.strip() for name, kind, _ in csv.reader(lines)}


def labels_of(metric: str) -> set[str]:
    """Labels of a metric that may be asked for; it must exist."""
    if metric in counters():
        return {"gpu", "UUID", "Hostname", "modelName", *SCRAPED}
    if metric in RECORDED:
        (expr,) = [rule.expr for rule in rules() if rule.place == f"rules: {metric}"]
        return grouped(expr)
    base = re.sub("_(bucket|sum|count)$", "", metric)
    histogram = base in METRICS and METRICS[base].kind is Kind.HISTOGRAM
    assert base in METRICS if histogram else metric in METRICS, f"nobody exposes {metric}"
    return {*METRICS[base if histogram else metric].labels, *SCRAPED, *(["le"] if histogram else [])}


def test_the_committed_dashboards_are_those_generated() -> None:
    """`python dashboards/generate.py` mends it."""
    generate = generator()
    assert set(BOARDS) == set(generate.BOARDS)
    for name, board in generate.BOARDS.items():
        assert (ROOT / f"{name}.json").read_text() == generate.generate(board), name
        assert generate.generate(board) == generate.generate(board)


@pytest.mark.parametrize("name", BOARDS)
def test_dashboards_keep_the_conventions(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"tunefarm-{name}"
    assert len(board["uid"]) <= 40
    assert board.get("id") is None
    assert board["editable"] is False
    assert board["tags"] == ["tunefarm", "generated"]
    assert "__inputs" not in board
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert "datasource" in variables
    ids = Counter(panel["id"] for panel in board["panels"])
    assert set(ids.values()) == {1}
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["options"]
            assert panel["targets"]
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
            used = {word for target in panel["targets"] for word in re.findall(r"\$([a-z]+)", target["expr"])}
            assert used <= variables


@pytest.mark.parametrize("asked", EVERYTHING, ids=lambda asked: asked.place)
def test_queries_parse_and_ask_for_what_is_exposed(asked: Asked) -> None:
    assert "$" not in asked.expr
    found = selectors(asked.expr)
    assert found
    known: set[str] = set()
    for metric, matched in found:
        labels = labels_of(metric)
        assert matched <= labels, f"{metric} has no {matched - labels}"
        known |= labels
    assert grouped(asked.expr) <= known


def test_a_query_that_asks_for_nothing_there_is_found_out() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (")
    with pytest.raises(AssertionError, match="nobody exposes tunefarm_trails"):
        test_queries_parse_and_ask_for_what_is_exposed(Asked("x", "sum(tunefarm_trails)"))
    with pytest.raises(AssertionError, match="nobody exposes tunefarm_trials_bucket"):
        test_queries_parse_and_ask_for_what_is_exposed(Asked("x", "sum(rate(tunefarm_trials_bucket[5m]))"))
    with pytest.raises(AssertionError, match="has no"):
        test_queries_parse_and_ask_for_what_is_exposed(Asked("x", 'tunefarm_trials{worker="w"}'))
    with pytest.raises(AssertionError):
        test_queries_parse_and_ask_for_what_is_exposed(Asked("x", "sum by (worker) (tunefarm_trials)"))


def test_only_what_grows_is_asked_for_its_rate() -> None:
    for asked in EVERYTHING:
        for metric in re.findall(r"(?:rate|increase)\(([A-Za-z_]+)", asked.expr):
            kind = METRICS[re.sub("_bucket$", "", metric)].kind if metric not in counters() else counters()[metric]
            assert kind in ("counter", "histogram"), f"{asked.place}: {metric} is a {kind}"


def test_every_metric_is_shown_or_alerted_on() -> None:
    asked = {re.sub("_bucket$", "", metric) for each in EVERYTHING for metric, _ in selectors(each.expr)}
    assert set(METRICS) <= asked


def test_legends_name_labels_that_their_queries_keep() -> None:
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expr = re.sub(r"\$__rate_interval", "5m", target["expr"])
                wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert wanted <= grouped(expr), (name, panel["title"])


def test_values_of_variables_are_asked_of_what_is_exposed() -> None:
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["name"] != "datasource":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
                assert label in labels_of(metric)


# ---- rules ----


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    for rule in ALERTS:
        assert re.fullmatch(r"Tunefarm[A-Z]\w+", rule["alert"])
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            kept = grouped(rule["expr"])
            kept |= {name for metric, _ in selectors(rule["expr"]) for name in labels_of(metric)}
            assert label in kept, rule["alert"]


def test_every_alert_is_shown_to_fire_and_to_keep_quiet() -> None:
    tests = yaml.safe_load((ROOT / "rules_test.yaml").read_text())["tests"]
    fires, quiet = set(), set()
    for case in (case for test in tests for case in test["alert_rule_test"]):
        (fires if case.get("exp_alerts") else quiet).add(case["alertname"])
    names = {rule["alert"] for rule in ALERTS}
    assert fires == names
    # Of those about packs, one test holds a good job beside a bad one.
    assert quiet == names - {"TunefarmPackMisses", "TunefarmRanksDisagree"}


def promtool(*arguments: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    return subprocess.run([tool, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False)


def test_rules_are_prometheus_s() -> None:
    done = promtool("check", "rules", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_pass_their_tests() -> None:
    done = promtool("test", "rules", "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in ALERTS])
def test_the_tests_of_rules_notice_an_alert_that_never_fires(alert: str, tmp_path: Path) -> None:
    broken = yaml.safe_load((ROOT / "rules.yaml").read_text())
    for group in broken["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == alert:
                rule["expr"] = f"({rule['expr']}) > 1e12"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(broken))
    shutil.copy(ROOT / "rules_test.yaml", tmp_path)
    done = promtool("test", "rules", "rules_test.yaml", folder=tmp_path)
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


def test_counters_for_dcgm_are_known_types_and_all_that_is_asked_for() -> None:
    listed = counters()
    assert set(listed.values()) <= {"gauge", "counter"}
    assert not any("_PROF_" in name for name in listed), "they disturb what is measured"
    asked = {metric for each in EVERYTHING for metric, _ in selectors(each.expr) if metric.startswith("DCGM_")}
    assert asked <= set(listed)
