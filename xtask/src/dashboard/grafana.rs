//! The dashboard as Grafana imports it: the JSON model of Grafana 10 and later.

use serde_json::{Value, json};

use super::panels::{Panel, ROWS, Row};

/// Grafana's grid has 24 columns; two panels are beside each other.
const WIDTH: usize = 12;
const HEIGHT: usize = 8;

/// What `$nodes` and `$services` stand for in a query: the values of Grafana's variables are regular
/// expressions.
const NODES: &str = r#"node=~"$node""#;
const SERVICES: &str = r#"namespace=~"$namespace",service=~"$service",node=~"$node""#;

/// The whole file.
pub(super) fn text() -> String {
    format!("{:#}\n", dashboard())
}

fn dashboard() -> Value {
    json!({
        "uid": "topo-lb",
        "title": "topo-lb",
        "description": "Written by `cargo xtask dashboard`; what is changed by hand is lost.",
        "tags": ["topo-lb"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {
                "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
                "refresh": 1,
            },
            variable("namespace", "topo_lb_connections_total", "namespace"),
            variable("service", "topo_lb_connections_total{namespace=~\"$namespace\"}", "service"),
            variable("node", "topo_lb_ready", "node"),
        ]},
        "panels": panels(),
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// A variable with the values of a label; by default all of them.
fn variable(name: &str, series: &str, label: &str) -> Value {
    let query = format!("label_values({series}, {label})");
    json!({
        "name": name, "type": "query", "datasource": datasource(),
        "definition": query, "query": {"query": query, "refId": name},
        "includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "sort": 1,
        "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
    })
}

fn panels() -> Vec<Value> {
    let (mut all, mut y) = (Vec::new(), 0);
    for Row { title, panels } in ROWS {
        all.push(json!({
            "id": all.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 2 * WIDTH, "h": 1},
        }));
        y += 1;
        for pair in panels.chunks(2) {
            for (at, one) in pair.iter().enumerate() {
                let mut value = panel(one);
                value["id"] = (all.len() + 1).into();
                value["gridPos"] = json!({"x": at * WIDTH, "y": y, "w": WIDTH, "h": HEIGHT});
                all.push(value);
            }
            y += HEIGHT;
        }
    }
    all
}

fn panel(panel: &Panel) -> Value {
    let targets: Vec<Value> = ('A'..)
        .zip(panel.queries)
        .map(|(id, query)| {
            let expr = query.expr.replace("$services", SERVICES).replace("$nodes", NODES);
            json!({
                "refId": id, "datasource": datasource(), "editorMode": "code", "range": true,
                "expr": expr, "legendFormat": query.legend,
            })
        })
        .collect();
    let stacking = if panel.stacked { "normal" } else { "none" };
    let mut defaults = json!({
        "unit": panel.unit, "min": 0,
        "custom": {"fillOpacity": if panel.stacked { 40 } else { 5 }, "stacking": {"mode": stacking}},
    });
    if panel.unit == "percentunit" {
        defaults["max"] = 1.into();
    }
    json!({
        "type": "timeseries", "title": panel.title, "description": panel.description,
        "datasource": datasource(), "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    })
}
