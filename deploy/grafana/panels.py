"""What a dashboard is made of, in as few words as it takes: panels in rows, laid out from left to right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WIDTH = 24
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAGS = ["holdfast"]


@dataclass(frozen=True)
class Query:
    """One expression and the name of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture: ``queries`` are pairs of expression and legend."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    bad: float | None = None
    """From here on it is drawn in red."""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What the reader chooses from: the values of a label."""

    name: str
    metric: str

    def model(self) -> dict[str, Any]:
        """It as Grafana wants it; All also takes what has no such label."""
        query = f"label_values({self.metric}, {self.name})"
        return {
            "name": self.name,
            "label": self.name,
            "type": "query",
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": self.name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


@dataclass(frozen=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    alerts: str = field(default="Holdfast.*")
    """Those that are drawn as marks on every picture."""

    def model(self) -> dict[str, Any]:
        """It as Grafana reads it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": TAGS,
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": [self._marks()]},
            "templating": {"list": [_datasource(), *(variable.model() for variable in self.variables)]},
            "links": [
                {
                    "type": "dashboards",
                    "title": "Holdfast",
                    "tags": TAGS,
                    "asDropdown": True,
                    "keepTime": True,
                }
            ],
            "panels": self._panels(),
        }

    def _marks(self) -> dict[str, Any]:
        return {
            "name": "Alerts",
            "datasource": _SOURCE,
            "enable": True,
            "iconColor": "red",
            "expr": f'ALERTS{{alertname=~"{self.alerts}", alertstate="firing"}}',
            "titleFormat": "{{alertname}}",
            "textFormat": "{{queue}} {{instance}}",
            "step": "60s",
        }

    def _panels(self) -> list[dict[str, Any]]:
        models: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            models.append(
                {
                    "type": "row",
                    "title": row.title,
                    "collapsed": False,
                    "panels": [],
                    "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                }
            )
            y, x, height = y + 1, 0, 0
            for panel in row.panels:
                if x + panel.width > WIDTH:
                    y, x, height = y + height, 0, 0
                models.append(_model(panel, x, y))
                x, height = x + panel.width, max(height, _HEIGHTS[panel.kind])
            y += height
        return [{"id": number, **model} for number, model in enumerate(models, 1)]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _model(panel: Panel, x: int, y: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom = {"fillOpacity": 40, "showPoints": "never", "stacking": {"mode": "normal"}}
    if panel.bad is not None:
        custom["thresholdsStyle"] = {"mode": "line"}
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHTS[panel.kind]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                **({"instant": True} if panel.kind == "stat" else {}),
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "background",
            "textMode": "value_and_name",
        }
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
