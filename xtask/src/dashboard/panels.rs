//! What the dashboard shows: rows of panels, each with its queries. A new figure is one entry here.
//!
//! In a query, `$services` stands for the matchers of the dashboard's variables for namespace, Service and
//! node, and `$nodes` for that of the node alone.

/// A row of panels.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: &'static [Panel],
}

/// A graph over time.
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// What the figures mean and what to look at, if the title does not say it.
    pub(super) description: &'static str,
    /// Grafana's name of the unit (`@grafana/data`, `valueFormats`).
    pub(super) unit: &'static str,
    /// Whether the lines are stacked: parts of a whole.
    pub(super) stacked: bool,
    pub(super) queries: &'static [Query],
}

/// A query, and the legend of each of its lines.
pub(super) struct Query {
    pub(super) expr: &'static str,
    pub(super) legend: &'static str,
}

const fn query(legend: &'static str, expr: &'static str) -> Query {
    Query { expr, legend }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        title: "Traffic",
        panels: &[
            Panel {
                title: "Connections by locality, share",
                description: "Where connections to Services go: an endpoint on the same node, in \
                              the zone, in the region, or elsewhere. An endpoint without a zone \
                              counts as elsewhere.",
                unit: "percentunit",
                stacked: true,
                queries: &[query(
                    "{{locality}}",
                    r#"sum by (locality) (rate(topo_lb_connections_total{$services}[$__rate_interval])) / on () group_left () sum(rate(topo_lb_connections_total{$services}[$__rate_interval]))"#,
                )],
            },
            Panel {
                title: "Connections by Service and locality",
                description: "The 20 with most connections.",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}} {{locality}}",
                    r#"topk(20, sum by (namespace, service, locality) (rate(topo_lb_connections_total{$services}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Connections that leave their zone",
                description: "The 20 Services with most of them.",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}}",
                    r#"topk(20, sum by (namespace, service) (rate(topo_lb_connections_total{$services,locality=~"region|elsewhere"}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Refused connections",
                description: "By Service and reason; docs/metrics.md lists the reasons.",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}} {{reason}}",
                    r#"topk(20, sum by (namespace, service, reason) (rate(topo_lb_refused_connections_total{$services}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Service ports that refuse",
                description: "By reason, summed over the nodes.",
                unit: "short",
                stacked: false,
                queries: &[query(
                    "{{reason}}",
                    r#"sum by (reason) (topo_lb_refusing_service_ports{$nodes})"#,
                )],
            },
            Panel {
                title: "tc packets by outcome",
                description: "Only nodes with --tc-devices or --kube-proxy-replacement.",
                unit: "pps",
                stacked: false,
                queries: &[query(
                    "{{hook}} {{outcome}}",
                    r#"sum by (hook, outcome) (rate(topo_lb_packets_total{$nodes}[$__rate_interval]))"#,
                )],
            },
        ],
    },
    Row {
        title: "TCP",
        panels: &[
            Panel {
                title: "Bytes by locality",
                description: "What clients sent and received by TCP, without headers and \
                              retransmissions. UDP has no such count.",
                unit: "Bps",
                stacked: true,
                queries: &[query(
                    "{{locality}}",
                    r#"sum by (locality) (rate(topo_lb_tcp_sent_bytes_total{$services}[$__rate_interval]) + rate(topo_lb_tcp_received_bytes_total{$services}[$__rate_interval]))"#,
                )],
            },
            Panel {
                title: "Share of bytes that leave their zone",
                description: "",
                unit: "percentunit",
                stacked: false,
                queries: &[query(
                    "cross-zone",
                    r#"(sum(rate(topo_lb_tcp_sent_bytes_total{$services,locality=~"region|elsewhere"}[$__rate_interval]) + rate(topo_lb_tcp_received_bytes_total{$services,locality=~"region|elsewhere"}[$__rate_interval])) or vector(0)) / sum(rate(topo_lb_tcp_sent_bytes_total{$services}[$__rate_interval]) + rate(topo_lb_tcp_received_bytes_total{$services}[$__rate_interval]))"#,
                )],
            },
            Panel {
                title: "Bytes that leave their zone",
                description: "The 20 Services with most of them.",
                unit: "Bps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}}",
                    r#"topk(20, sum by (namespace, service) (rate(topo_lb_tcp_sent_bytes_total{$services,locality=~"region|elsewhere"}[$__rate_interval]) + rate(topo_lb_tcp_received_bytes_total{$services,locality=~"region|elsewhere"}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Bytes that leave their zone under no policy",
                description: "The 20 Services with most of them: what topo-lb leaves to another \
                              proxy, or translates without a key in force. Bind the first.",
                unit: "Bps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}}",
                    r#"topk(20, sum by (namespace, service) (rate(topo_lb_tcp_sent_bytes_total{$services,locality=~"region|elsewhere",tier=~"none|left"}[$__rate_interval]) + rate(topo_lb_tcp_received_bytes_total{$services,locality=~"region|elsewhere",tier=~"none|left"}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Round trips by locality",
                description: "The last smoothed round trip of each connection, at its end: median \
                              and p99.",
                unit: "s",
                stacked: false,
                queries: &[
                    query(
                        "{{locality}} p50",
                        r#"histogram_quantile(0.5, sum by (le, locality) (rate(topo_lb_tcp_rtt_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                    query(
                        "{{locality}} p99",
                        r#"histogram_quantile(0.99, sum by (le, locality) (rate(topo_lb_tcp_rtt_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                ],
            },
            Panel {
                title: "Failed connections",
                description: "By Service and reason; docs/metrics.md lists the reasons. Without \
                              those that topo-lb refused.",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}} {{reason}}",
                    r#"topk(20, sum by (namespace, service, reason) (rate(topo_lb_connect_failures_total{$services}[$__rate_interval])))"#,
                )],
            },
            Panel {
                title: "Segments sent again",
                description: "A sign of loss on the way to endpoints.",
                unit: "pps",
                stacked: false,
                queries: &[query(
                    "sent again",
                    r#"sum(rate(topo_lb_tcp_retransmitted_segments_total{$services}[$__rate_interval])) or vector(0)"#,
                )],
            },
        ],
    },
    Row {
        title: "Endpoints that are ejected",
        panels: &[
            Panel {
                title: "Ejected endpoints",
                description: "Endpoints that nodes eject because their connects to them failed \
                              (topo-lb.io/ejection): the 10 nodes with most of them.",
                unit: "short",
                stacked: false,
                queries: &[query(
                    "{{node}}",
                    r#"topk(10, max by (node) (topo_lb_ejected_endpoints{$nodes}))"#,
                )],
            },
            Panel {
                title: "Ejections and probes",
                description: "Why endpoints were ejected, and what the probes of those have shown; \
                              docs/metrics.md lists the reasons and outcomes.",
                unit: "cps",
                stacked: false,
                queries: &[
                    query(
                        "ejected: {{reason}}",
                        r#"sum by (reason) (rate(topo_lb_ejections_total{$nodes}[$__rate_interval]))"#,
                    ),
                    query(
                        "probe: {{outcome}}",
                        r#"sum by (outcome) (rate(topo_lb_ejection_probes_total{$nodes}[$__rate_interval]))"#,
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Bad days",
        panels: &[
            Panel {
                title: "Evacuations in force",
                description: "Objects that evacuate endpoints, on the node with most of them; and what is evacuated \
                              without an end, which nothing but a command ends.",
                unit: "short",
                stacked: false,
                queries: &[
                    query("in force", r#"max(topo_lb_evacuations{$nodes})"#),
                    query(
                        "without an end",
                        r#"count(count by (key, value) (topo_lb_evacuated_services{$nodes,until=""})) or vector(0)"#,
                    ),
                ],
            },
            Panel {
                title: "Islands",
                description: "Nodes that have heard nothing from the API server for --island-after, and the most \
                              endpoints that do not answer one of them.",
                unit: "short",
                stacked: false,
                queries: &[
                    query("nodes", r#"sum(topo_lb_island{$nodes})"#),
                    query("dead endpoints", r#"max(topo_lb_dead_endpoints{$nodes})"#),
                ],
            },
            Panel {
                title: "Connections brought home",
                description: "Idle connections to a wider tier that were ended, as a nearer one is back \
                              (topo-lb.io/return).",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "ended",
                    r#"sum(rate(topo_lb_returned_sockets_total{$nodes}[$__rate_interval]))"#,
                )],
            },
            Panel {
                title: "Connections that are still away",
                description: "Those that may come home: they wait for their turn, are in use, or the agent may not \
                              open them.",
                unit: "short",
                stacked: true,
                queries: &[query("{{state}}", r#"sum by (state) (topo_lb_away_sockets{$nodes})"#)],
            },
        ],
    },
    Row {
        title: "While agents only observe (--observe)",
        panels: &[
            Panel {
                title: "Share of connections that leave their zone: now, and with topo-lb",
                description: "Only nodes whose agents observe. Both sides differ in whom they count: \
                              docs/metrics.md.",
                unit: "percentunit",
                stacked: false,
                queries: &[
                    query(
                        "now",
                        r#"(sum(rate(topo_lb_observed_connections_total{$services,locality=~"region|elsewhere"}[$__rate_interval])) or vector(0)) / sum(rate(topo_lb_observed_connections_total{$services}[$__rate_interval]))"#,
                    ),
                    query(
                        "with topo-lb",
                        r#"(sum(rate(topo_lb_would_be_connections_total{$services,locality=~"region|elsewhere"}[$__rate_interval])) or vector(0)) / sum(rate(topo_lb_would_be_connections_total{$services}[$__rate_interval]))"#,
                    ),
                ],
            },
            Panel {
                title: "Connections that topo-lb would refuse",
                description: "By Service and reason; docs/metrics.md lists the reasons.",
                unit: "cps",
                stacked: false,
                queries: &[query(
                    "{{namespace}}/{{service}} {{reason}}",
                    r#"topk(20, sum by (namespace, service, reason) (rate(topo_lb_would_be_refused_connections_total{$services}[$__rate_interval])))"#,
                )],
            },
        ],
    },
    Row {
        title: "Agents",
        panels: &[
            Panel {
                title: "Ready agents",
                description: "",
                unit: "short",
                stacked: false,
                queries: &[
                    query("ready", r#"sum(topo_lb_ready{$nodes})"#),
                    query("scraped", r#"count(topo_lb_ready{$nodes})"#),
                ],
            },
            Panel {
                title: "State age",
                description: "The 10 nodes with the oldest state; zero while an agent hears of \
                              changes as they happen.",
                unit: "s",
                stacked: false,
                queries: &[query(
                    "{{node}}",
                    r#"topk(10, max by (node) (topo_lb_state_age_seconds{$nodes}))"#,
                )],
            },
            Panel {
                title: "From a change to the maps",
                description: "From the arrival of a change at an agent to the end of its writes.",
                unit: "s",
                stacked: false,
                queries: &[
                    query(
                        "p50",
                        r#"histogram_quantile(0.5, sum by (le) (rate(topo_lb_programming_duration_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                    query(
                        "p99",
                        r#"histogram_quantile(0.99, sum by (le) (rate(topo_lb_programming_duration_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                ],
            },
            Panel {
                title: "From a Pod's change to the maps",
                description: "Includes kubelet, API server and the controller of EndpointSlices.",
                unit: "s",
                stacked: false,
                queries: &[
                    query(
                        "p50",
                        r#"histogram_quantile(0.5, sum by (le) (rate(topo_lb_network_programming_duration_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                    query(
                        "p99",
                        r#"histogram_quantile(0.99, sum by (le) (rate(topo_lb_network_programming_duration_seconds_bucket{$nodes}[$__rate_interval])))"#,
                    ),
                ],
            },
            Panel {
                title: "Map fill",
                description: "Of the fullest node, by map; and open connections of guests and of \
                              clients outside, by address family.",
                unit: "percentunit",
                stacked: false,
                queries: &[
                    query(
                        "{{map}}",
                        r#"max by (map) (topo_lb_map_used_entries{$nodes} / topo_lb_map_capacity_entries{$nodes})"#,
                    ),
                    query(
                        "connections, {{family}}",
                        r#"max by (family) (topo_lb_tracked_connections{$nodes,state="open"} / ignoring (state) topo_lb_tracked_connections_limit{$nodes})"#,
                    ),
                ],
            },
            Panel {
                title: "Should be zero",
                description: "Summed over the nodes. docs/operations.md has a section for each \
                              alert.",
                unit: "short",
                stacked: false,
                queries: &[
                    query("overridden hooks", r#"sum(topo_lb_overridden_hooks{$nodes})"#),
                    query("programs in front", r#"sum(topo_lb_programs_in_front{$nodes})"#),
                    query("waiting Services", r#"sum(topo_lb_waiting_services{$nodes})"#),
                    query(
                        "Services without room",
                        r#"sum(topo_lb_left_out_services{$nodes} + topo_lb_narrowed_services{$nodes} + topo_lb_stale_services{$nodes} + topo_lb_no_room_refused_services{$nodes} + topo_lb_direct_dials_services{$nodes})"#,
                    ),
                ],
            },
        ],
    },
];
