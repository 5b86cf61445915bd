"""What an expression of PromQL names, and which labels its result has: told by a real parser and the declared metrics.

``Catalogue.labels`` raises :class:`Wrong` for a metric that nobody declares, for a label that a metric does not have,
and for two sides of an operator that can never match.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import promql_parser as promql
import yaml
from promql_parser import AggModifierType, LabelModifierType, MatchOp

from holdfast.telemetry.metrics import Metrics
from tests.support.paths import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
TARGET = frozenset({"instance", "job", "namespace", "pod"})
"""What Prometheus, or its operator, adds to everything that it scrapes."""
_FIXED = {"status", "reason", "path", "result"}
"""Labels whose values are words of the code; those of others are names that somebody chose."""
_SETS = {"and", "or", "unless"}
_COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
_KEEPING = {"topk", "bottomk"}


_HPA = TARGET | {"horizontalpodautoscaler"}
_DEPLOYMENT = TARGET | {"deployment"}
_SCALED = TARGET | {"exported_namespace", "scaledObject", "scaler", "metric", "triggerIndex", "type"}
OTHERS = {
    "kube_horizontalpodautoscaler_status_desired_replicas": _HPA,
    "kube_horizontalpodautoscaler_status_current_replicas": _HPA,
    "kube_horizontalpodautoscaler_spec_max_replicas": _HPA,
    "kube_deployment_spec_replicas": _DEPLOYMENT,
    "kube_deployment_status_replicas_ready": _DEPLOYMENT,
    "keda_scaler_metrics_value": _SCALED,
    "keda_scaler_active": _SCALED,
    "keda_scaled_object_paused": TARGET | {"exported_namespace", "scaledObject"},
    "keda_scaler_detail_errors_total": _SCALED,
}
"""Series of kube-state-metrics and of KEDA's operator, by their documentation."""


class Wrong(Exception):
    """An expression names what there is not."""


def rule_files() -> list[Path]:
    return sorted(PROMETHEUS.glob("*.rules.yml"))


def rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name, in all files."""
    return {rule["alert"]: rule for file in rule_files() for rule in rules_of(file) if "alert" in rule}


def scraped() -> dict[str, frozenset[str]]:
    """The labels of every series that a process of ours shows, by its name."""
    metrics, found = Metrics(), {"up": TARGET, **OTHERS}
    for one in metrics.declared:
        labels = TARGET | set(one.labels)
        if one.kind == "histogram":
            found[f"{one.name}_bucket"] = labels | {"le"}
            found[f"{one.name}_sum"] = found[f"{one.name}_count"] = labels
        else:
            found[one.name] = labels
    for family in metrics.registry.collect():
        if family.name.startswith("holdfast_process_"):
            found |= {sample.name: TARGET for sample in family.samples}
    return found


def _sources() -> str:
    return "\n".join(file.read_text() for file in sorted((ROOT / "src" / "holdfast").rglob("*.py")))


@dataclass(frozen=True)
class Catalogue:
    """The series that there are: scraped, and recorded by the rules."""

    series: dict[str, frozenset[str]] = field(default_factory=scraped)
    code: str = field(default_factory=_sources, repr=False)

    @classmethod
    def with_rules(cls) -> Catalogue:
        """All that is scraped, and what the rules make of it."""
        catalogue = cls()
        for file in rule_files():
            for rule in rules_of(file):
                if "record" in rule:
                    made = catalogue.labels(rule["expr"]) | set(rule.get("labels", {}))
                    catalogue.series[rule["record"]] = catalogue.series.get(rule["record"], made) | made
        return catalogue

    def labels(self, expr: str) -> frozenset[str]:
        """The labels that the result may have; each of them is there to be aggregated by."""
        try:
            tree = promql.parse(expr)
        except ValueError as error:
            raise Wrong(f"{error}: {expr}") from error
        return self._of(tree)

    def _of(self, node: Any) -> frozenset[str]:
        match type(node).__name__:
            case "VectorSelector":
                return self._selected(node)
            case "MatrixSelector":
                return self._selected(node.vector_selector)
            case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
                return self._of(node.expr)
            case "AggregateExpr":
                return self._aggregated(node)
            case "BinaryExpr":
                return self._combined(node)
            case "Call":
                return self._called(node)
            case _:
                return frozenset()

    def _selected(self, node: Any) -> frozenset[str]:
        labels = self.series.get(node.name)
        if labels is None:
            raise Wrong(f"{node.name} is no metric of ours, and no rule records it")
        for matcher in node.matchers.matchers:
            _only({matcher.name}, labels, node.name)
            if matcher.name in _FIXED and "$" not in matcher.value:
                self._check_value(matcher)
        return labels

    def _check_value(self, matcher: Any) -> None:
        """A value that the code never writes selects nothing; a pattern may be anything."""
        is_pattern = matcher.op == MatchOp.Re or matcher.op == MatchOp.NotRe
        words = matcher.value.split("|") if is_pattern else [matcher.value]
        for word in words:
            if word.replace("_", "").isalnum() and not word.isdigit() and not self.is_written(word):
                raise Wrong(f'nothing is ever labelled {matcher.name}="{word}"')

    def is_written(self, word: str) -> bool:
        """Whether the code has this word as a value."""
        return f'"{word}"' in self.code or word.upper() in {code.name for code in grpc.StatusCode}

    def _aggregated(self, node: Any) -> frozenset[str]:
        inner = self._of(node.expr)
        if node.modifier is None:
            return inner if str(node.op) in _KEEPING else frozenset()
        named = frozenset(node.modifier.labels)
        _only(named, inner, str(node.expr))
        if str(node.op) in _KEEPING:
            return inner
        return named if node.modifier.type == AggModifierType.By else inner - named

    def _combined(self, node: Any) -> frozenset[str]:
        if _is_scalar(node.lhs) or _is_scalar(node.rhs):
            return self._of(node.rhs if _is_scalar(node.lhs) else node.lhs)
        left, right, operator = self._of(node.lhs), self._of(node.rhs), str(node.op)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is None:
            if left != right:
                raise Wrong(f"{sorted(left)} never match {sorted(right)}: say `on (...)`, in {node}")
            return left
        named = frozenset(matching.labels)
        _only(named, left & right, str(node))
        if operator == "or":
            return left | right
        if operator in _SETS | _COMPARISONS:
            return left
        joined = frozenset(node.modifier.group_labels.labels if node.modifier.group_labels else ())
        return (named if matching.type == LabelModifierType.Include else (left & right) - named) | joined

    def _called(self, node: Any) -> frozenset[str]:
        name = node.func.name
        inner = frozenset[str]().union(*(self._of(each) for each in node.args))
        if name == "label_replace":
            _only({node.args[3].val}, inner, str(node))
            return inner | {node.args[1].val}
        if name == "histogram_quantile":
            _only({"le"}, inner, str(node))
            return inner - {"le"}
        return frozenset() if name in {"absent", "scalar", "vector", "time"} else inner


def _is_scalar(node: Any) -> bool:
    if type(node).__name__ == "ParenExpr":
        return _is_scalar(node.expr)
    if type(node).__name__ == "BinaryExpr":
        return _is_scalar(node.lhs) and _is_scalar(node.rhs)
    return type(node).__name__ in {"NumberLiteral", "StringLiteral"} or (
        type(node).__name__ == "Call" and node.func.name in {"scalar", "time"}
    )


def _only(named: frozenset[str] | set[str], known: frozenset[str], where: str) -> None:
    if unknown := named - known:
        raise Wrong(
            f"{', '.join(sorted(unknown))}: no label of {where}, which has {', '.join(sorted(known))}"
        )
