"""What all dashboards are made of: two arms picked by a label, and panels that look the same everywhere.

Queries are plain PromQL; `$label`, `$baseline` and the like are variables of the dashboard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Tile
from grafana_foundation_sdk.builders.statetimeline import Panel as States
from grafana_foundation_sdk.builders.timeseries import Panel as Lines
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

__all__ = [
    "LABELS",
    "Board",
    "Lines",
    "Query",
    "States",
    "Tile",
    "both",
    "lines",
    "stacked",
    "states",
    "tile",
]


SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
LABELS = ("track", "arm", "job", "instance", "pod", "model_name")
"""Labels that commonly tell two arms apart: the canary's from the stable one, the arms of a comparison."""
COLOURS = {
    **{"baseline": "#8a96a8", "candidate": "#3d71d9"},
    **{"device": "#14a08f", "host": "#4169e1", "disk": "#8e3fc4", "computed": "#d97706"},
}
STATE_COLOURS = {"good": "green", "open": "yellow", "bad": "red", "void": "text"}
WIDTH = 24
HEIGHT = 8


@dataclass(frozen=True)
class Query:
    """One query of a panel; `legend` may hold labels in double braces."""

    expr: str
    legend: str


def both(expr: Callable[[str], str], what: str = "") -> list[Query]:
    """The same query for either arm; `expr` takes the label matcher that selects it."""
    return [
        Query(expr(f'$label="${arm}"'), f"{arm} {what}".rstrip()) for arm in ("baseline", "candidate")
    ]  # fmt: skip


def lines(
    title: str, unit: str, queries: Sequence[Query], description: str, *, width: int = 8, most: float | None = None
) -> Lines:
    """Lines over time; the baseline is grey and dashed wherever its series is named `baseline ...`."""
    panel = _timeseries(title, unit, queries, description, width).fill_opacity(6)
    if most is not None:
        panel = panel.max(most)
    dash = dashboard.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]})
    for arm in ("baseline", "candidate"):
        colour = dashboard.DynamicConfigValue(id_val="color", value=_fixed(COLOURS[arm]))
        panel = panel.override_by_name(arm, [colour, dash] if arm == "baseline" else [colour])
    return panel.override_by_regexp("/^baseline ./", [dash])


def stacked(title: str, unit: str, queries: Sequence[Query], description: str, *, width: int = 12) -> Lines:
    """Parts of a whole over time; sources have the colours that they have in reports."""
    panel = _timeseries(title, unit, queries, description, width).fill_opacity(70).line_width(0)
    panel = panel.stacking(build_common.StackingConfig().mode(common.StackingMode.NORMAL))
    for name in ("device", "host", "disk", "computed"):
        colour = dashboard.DynamicConfigValue(id_val="color", value=_fixed(COLOURS[name]))
        panel = panel.override_by_name(name, [colour])
    return panel


def tile(title: str, unit: str, queries: Sequence[Query], description: str, *, width: int = 4) -> Tile:
    """One figure an arm, the last one measured."""
    panel = (
        Tile()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(width)
        .no_value("no data")
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(common.BigValueColorMode.NONE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, ascii_uppercase[place]))
    return panel


def states(
    title: str, query: Query, words: Sequence[tuple[str, str]], description: str, *, width: int = WIDTH
) -> States:
    """A row for each series; value 1 is the first of `words` and so on, each with a key of `STATE_COLOURS`."""
    results = {
        str(number): dashboard.ValueMappingResult(text=word, color=STATE_COLOURS[tone], index=number)
        for number, (word, tone) in enumerate(words, 1)
    }
    return (
        States()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(width)
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(80)
        .mappings([dashboard.ValueMap(options=results)])
        .with_target(_target(query, "A"))
    )


def _timeseries(
    title: str, unit: str, queries: Sequence[Query], description: str, width: int
) -> Lines:  # fmt: skip
    legend = build_common.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).show_legend(True)
    panel = (
        Lines()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(HEIGHT)
        .span(width)
        .line_width(2)
        .show_points(common.VisibilityMode.NEVER)
        .no_value("no data")
        .legend(legend.placement(common.LegendPlacement.BOTTOM).calcs([]))
        .tooltip(build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, ascii_uppercase[place]))
    return panel


def _fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def _target(query: Query, ref: str) -> Dataquery:
    target = Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).range()
    return target.datasource(SOURCE)


class Board:
    """A dashboard under construction; ids of panels are their places, so that the same code gives the same file."""

    def __init__(self, name: str, title: str, description: str) -> None:
        self._builder = (
            build.Dashboard(title)
            .uid(f"kvbench-{name}")
            .description(description)
            .tags(["kvbench", "kv-cache"])
            .refresh("30s")
            .time("now-3h", "now")
            .timezone("browser")
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .link(
                build.DashboardLink("kvbench")
                .type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags(["kvbench"])
                .as_dropdown(False)
                .keep_time(True)
                .include_vars(True)
            )
        )
        self._panels = 0

    def arms(self, series: str) -> Board:
        """Variables: which label tells the arms apart, and which of its values are baseline and candidate."""
        self.one_of("label", "Told apart by", LABELS, LABELS[0])
        self.choice("baseline", "Baseline", f"label_values({series}, $label)")
        return self.choice("candidate", "Candidate", f"label_values({series}, $label)")

    def one_of(self, name: str, label: str, values: Sequence[str], default: str) -> Board:
        """A variable with a list of its own."""
        options = [dashboard.VariableOption(selected=value == default, text=value, value=value) for value in values]
        variable = build.CustomVariable(name).label(label).values(",".join(values)).options(options)
        self._builder.with_variable(variable.current(options[list(values).index(default)]))
        return self

    def choice(self, name: str, label: str, query: str) -> Board:
        """A variable whose values Prometheus knows."""
        variable = build.QueryVariable(name).label(label).query(query).datasource(SOURCE)
        variable = variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        self._builder.with_variable(variable.sort(dashboard.VariableSort.ALPHABETICAL_ASC))
        return self

    def row(self, title: str, *panels: Lines | Tile | States) -> Board:
        """A heading and what stands under it."""
        self._builder.with_row(build.Row(title).id(self._next()))
        for panel in panels:
            self._builder.with_panel(panel.id(self._next()))
        return self

    def _next(self) -> int:
        self._panels += 1
        return self._panels

    def text(self) -> str:
        """The JSON that Grafana imports."""
        return json.dumps(self._builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
