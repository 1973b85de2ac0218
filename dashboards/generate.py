"""Writes the Grafana dashboards beside this file from `boards.py`: python dashboards/generate.py"""

from __future__ import annotations

from pathlib import Path

from boards import BOARDS, Board, Panel
from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableRefresh,
)

HERE = Path(__file__).parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
MAKERS = {"timeseries": timeseries.Panel, "stat": stat.Panel, "bargauge": bargauge.Panel}
BOTTOM = LegendPlacement.BOTTOM
HEIGHT = 8


def generate(board: Board) -> str:
    """A dashboard as Grafana loads it: equal tables give equal text."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.says)
        .tags(["tunefarm", "generated"])
        .readonly()
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(dashboard.DashboardLink("tunefarm").type(DashboardLinkType.DASHBOARDS).tags(["tunefarm"]).keep_time(True))
        .link(dashboard.DashboardLink("Ray").type(DashboardLinkType.LINK).url("/d/rayDefaultDashboard").keep_time(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in board.variables:
        made.with_variable(
            dashboard.QueryVariable(name).datasource(SOURCE).query(query).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True).include_all(True).all_value(".*").current({"selected": True, "text": "All", "value": "$__all"})
        )  # fmt: skip
    number = 0
    for title, panels in board.rows:
        number += 1
        made.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            number += 1
            made.with_panel(_panel(panel, number))
    return str(JSONEncoder(sort_keys=True, indent=2).encode(made.build())) + "\n"


def _panel(panel: Panel, number: int) -> object:
    made = (
        MAKERS[panel.kind]()
        .id(number)
        .title(panel.title)
        .description(panel.says)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.span)
        .height(HEIGHT)
    )
    if panel.kind == "timeseries":
        made.fill_opacity(20 if panel.stacked else 0).min(0)
        made.legend(common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST).placement(BOTTOM))
        if panel.stacked:
            made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    else:
        made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        made.with_target(
            prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(query.expr).legend_format(query.legend)
        )
    return made


def main() -> None:
    """Writes all of them."""
    for name, board in BOARDS.items():
        (HERE / f"{name}.json").write_text(generate(board))


if __name__ == "__main__":
    main()
