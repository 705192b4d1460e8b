//! Every metric: declared here, and nowhere else. The agent registers these, and a unit test writes the table of
//! docs/metrics.md.

/// What every name begins with.
pub const PREFIX: &str = "topo_lb_";

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// As queries name it, with prefix, unit and suffix.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels, in the order in which a sample has their values.
    pub labels: &'static [&'static str],
    /// Its help text: one sentence without a full stop.
    pub help: &'static str,
    /// What docs/metrics.md says beyond the help, in Markdown; empty if there is no more to say.
    pub more: &'static str,
}

/// The types of OpenMetrics that the agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Grows, or begins again at zero.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Values by size.
    Histogram,
    /// Labels with a value that is always 1.
    Info,
}

impl Metric {
    /// The name without what OpenMetrics appends by type.
    #[must_use]
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:ident)*] $help:expr, $more:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                labels: &[$(stringify!($label)),*],
                help: $help,
                more: $more,
            };
        )*
        /// All, in the order of docs/metrics.md.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    CONNECTIONS: Counter "topo_lb_connections_total" [namespace service port locality]
        "Connections of this node to a Service port by where they went (while observing: would have gone): an \
         endpoint on the same node, in its zone, its region, or elsewhere. Only Service ports that had any",
        "`locality`: `node`, `zone`, `region` or `elsewhere`. An endpoint whose EndpointSlice does not give its zone \
         counts as `elsewhere` unless [all Nodes are watched](topology.md#which-nodes-an-agent-watches), and so does \
         one in another zone while this node has no region. \
         `port`: the Service port's name, else its number";
    TCP_SENT_BYTES: Counter "topo_lb_tcp_sent_bytes_total" [namespace service port locality tier]
        "Bytes that clients of this node sent to a Service port over TCP, without headers and retransmissions, by \
         locality of the endpoint and tier in force",
        "[Accounting](#bytes-round-trips-and-failures). `tier`: index of the topology key that was in force, or `none`; with [`--count all`](#everything) also `left` and \
         `direct`";
    TCP_RECEIVED_BYTES: Counter "topo_lb_tcp_received_bytes_total" [namespace service port locality tier]
        "Bytes that clients of this node received from a Service port, likewise", "";
    TCP_RETRANSMITTED_SEGMENTS: Counter
        "topo_lb_tcp_retransmitted_segments_total" [namespace service port locality tier]
        "TCP segments that clients of this node sent again to a Service port, with SYNs", "";
    TCP_ENDED_CONNECTIONS: Counter "topo_lb_tcp_ended_connections_total" [namespace service port locality tier]
        "TCP connections of this node to a Service port that were established and have ended", "";
    TCP_RTT: Histogram "topo_lb_tcp_rtt_seconds" [locality]
        "Last smoothed round trips of TCP connections of this node to Services that ended, by locality of the endpoint",
        "Since the agent started";
    ZONE_SENT_BYTES: Counter "topo_lb_zone_sent_bytes_total" [source_zone destination_zone]
        "Bytes that clients of this node sent to Services over TCP, by this node's zone and the endpoint's",
        "Since the agent started ([zones](#from-zone-to-zone))";
    ZONE_RECEIVED_BYTES: Counter "topo_lb_zone_received_bytes_total" [source_zone destination_zone]
        "Bytes that clients of this node received from Services, likewise", "";
    OTHER_SENT_BYTES: Counter "topo_lb_other_sent_bytes_total" [to]
        "Bytes that clients of this node sent over TCP to what counts for no Service port",
        "[`--count all`](#everything) only, since the agent started. `to`: `pods`, `unknown` or `elsewhere`";
    OTHER_RECEIVED_BYTES: Counter "topo_lb_other_received_bytes_total" [to]
        "Bytes that clients of this node received over TCP from what counts for no Service port", "Likewise";
    OTHER_ENDED_CONNECTIONS: Counter "topo_lb_other_ended_connections_total" [to]
        "TCP connections of this node to what counts for no Service port that were established and have ended",
        "Likewise";
    COUNTING_ALL: Gauge "topo_lb_counting_all" []
        "Whether TCP connections are counted, too, that topo-lb does not translate (--count all)",
        "0 also if the kernel cannot count";
    UNCOUNTED_CONNECTIONS: Counter "topo_lb_uncounted_connections_total" []
        "Ended TCP connections that were not counted, as the ring buffer that tells the agent of them was full",
        "`--count all` only";
    CONNECT_FAILURES: Counter "topo_lb_connect_failures_total" [namespace service port locality tier reason]
        "TCP connections of this node to a Service port that were never established, without those that topo-lb \
         refused: answered with a RST, timed out, given up by the client after a retransmitted SYN, or answered as \
         unreachable",
        "";
    OBSERVING: Gauge "topo_lb_observing" []
        "Whether the agent only observes: it translates nothing (--observe)",
        "[What it counts then](#while-an-agent-only-observes)";
    OBSERVED_CONNECTIONS: Counter "topo_lb_observed_connections_total" [namespace service port locality]
        "Connections of this node to a Service port by where another proxy sent them, while topo-lb observes",
        "Only with `--observe`, since the agent started";
    WOULD_BE_CONNECTIONS: Counter "topo_lb_would_be_connections_total" [namespace service port locality]
        CONNECTIONS.help, "Only with `--observe`, in place of `topo_lb_connections_total`";
    WOULD_BE_REFUSED_CONNECTIONS: Counter "topo_lb_would_be_refused_connections_total" [namespace service port reason]
        REFUSED_CONNECTIONS.help, "Only with `--observe`, in place of `topo_lb_refused_connections_total`";
    WOULD_BE_REFUSING_SERVICE_PORTS: Gauge "topo_lb_would_be_refusing_service_ports" [reason]
        REFUSING_SERVICE_PORTS.help, "Only with `--observe`, in place of `topo_lb_refusing_service_ports`";
    OBSERVER_OVERRUNS: Counter "topo_lb_observer_overruns_total" []
        "New connections that the agent could not observe, and times that the kernel dropped some",
        "Only with `--observe`";
    REFUSED_CONNECTIONS: Counter "topo_lb_refused_connections_total" [namespace service port reason]
        "Connections of this node to a Service port that were refused (while observing: would have been), by the \
         reason at the time of the scrape that first saw them",
        "";
    REFUSING_SERVICE_PORTS: Gauge "topo_lb_refusing_service_ports" [reason]
        "Service ports that refuse (while observing: would refuse) connections of this node now, by reason", "";
    TORN_READS: Counter "topo_lb_torn_reads_total" []
        "Connections and datagrams that were refused because the Service's value was being replaced in each of three \
         attempts to read it",
        "`topo_lb_refused_connections_total` does not count them, because the Service is not known";
    PACKETS: Counter "topo_lb_packets_total" [hook outcome]
        "Packets on the devices of guests and of clients outside by the hook that saw them and what became of them",
        "`ingress` and `egress` are of tc; `xdp` has those that XDP has sent back or dropped, which tc does not see. \
         Guests: `--tc-devices`. No series without such devices";
    PROGRAMMING_DURATION: Histogram "topo_lb_programming_duration_seconds" []
        "From the arrival of a change to the end of the writes that it led to",
        "Changes arrive by watch or from manifests; those of the first listing are not timed";
    NETWORK_PROGRAMMING_DURATION: Histogram "topo_lb_network_programming_duration_seconds" []
        "From endpoints.kubernetes.io/last-change-trigger-time of an EndpointSlice to the end of the writes that it \
         led to; changes from before the start are left out",
        "Includes kubelet, API server and controller, like kube-proxy's \
         `kubeproxy_network_programming_duration_seconds`. Changes that arrive by a new listing are not timed";
    MAP_USED_ENTRIES: Gauge "topo_lb_map_used_entries" [map]
        "Entries of a map that are in use", "Of the maps that the agent fills; LRU maps are not counted";
    MAP_CAPACITY_ENTRIES: Gauge "topo_lb_map_capacity_entries" [map]
        "Entries that a map has room for", "Of the same maps";
    MAP_WRITES: Counter "topo_lb_map_writes_total" []
        "Steps of plans that were carried out", "";
    FAILED_PLANS: Counter "topo_lb_failed_plans_total" []
        "Plans that could not be carried out, and were made anew", "";
    LAST_PROGRAMMED_TIMESTAMP: Gauge "topo_lb_last_programmed_timestamp_seconds" []
        "When the last plan was carried out, since 1970; zero before the first", "";
    STATE_AGE: Gauge "topo_lb_state_age_seconds" []
        "How old the cluster's state is that is served; zero while changes are heard of as they happen", "";
    READY: Gauge "topo_lb_ready" []
        "Whether /readyz says ready", "1 if it answers 200";
    OVERRIDDEN_HOOKS: Gauge "topo_lb_overridden_hooks" []
        "Hooks, of connect4, connect6, sendmsg4 and sendmsg6, where a program of others runs before topo-lb's in some \
         cgroup and may decide first",
        "Above zero the agent is not ready ([why](operations.md#beside-another-socket-load-balancer))";
    DEVICES: Gauge "topo_lb_devices" [role]
        "Devices with tc programs: of guests, and of clients outside",
        "`role`: `guest` (`--tc-devices`), `external` (`--kube-proxy-replacement`). Without an `external` one, clients \
         outside are not served";
    TRACKED_CONNECTIONS: Gauge "topo_lb_tracked_connections" [family state]
        "Connections of guests and of clients outside that are open, or not established yet",
        "With `--tc-devices` or `--kube-proxy-replacement`. `family`: `IPv4` or `IPv6`; `state`: `open` or `half-open`";
    TRACKED_CONNECTIONS_LIMIT: Gauge "topo_lb_tracked_connections_limit" [family]
        "Open connections of guests and of clients outside that there is room for",
        "`--max-connections`; beyond it new ones are dropped as `table-full`";
    SOURCE_NAT: Gauge "topo_lb_source_nat" [by]
        "Who gives connections from outside to endpoints of other nodes their source",
        "1 for `tc` or for `nftables` ([source NAT](kube-proxy-free.md#source-nat)); 0 for both without \
         `--kube-proxy-replacement`, while no device for clients outside is found, and after a restart while the table \
         is needed and cannot be written (`/readyz` says so)";
    DIRECT_RETURN_NODES: Gauge "topo_lb_direct_return_nodes" [family state]
        "Other nodes with endpoints of Services with direct return, by whether packets of clients outside are sent on to \
         them",
        "`--direct-return auto`. `family`: `IPv4` or `IPv6`; `state`: `proved`, `asking` (not known yet) or `unproved`: \
         connections to these get source NAT, and `topo-lb list peers` says why";
    DIRECT_RETURN_IGNORED: Counter "topo_lb_direct_return_ignored_total" [reason]
        "Frames to the port of the probes between agents that were ignored",
        "`--direct-return auto`. `reason`: `garbage`, `version` (an agent of another version), `unasked` (about an address \
         that is no frontend here, or an answer to no question), `flood` (too many)";
    XDP_DEVICES: Gauge "topo_lb_xdp_devices" []
        "Devices of clients outside with the fast path of XDP",
        "`--xdp auto`; the agent's log says why a device is without it ([where it helps](kube-proxy-free.md#xdp))";
    UNSERVED_DEVICES: Gauge "topo_lb_unserved_devices" []
        "Devices without Ethernet headers by which clients outside may come: they are not served",
        "The agent stays ready ([which devices](kube-proxy-free.md#what-happens-where))";
    PROGRAMS_IN_FRONT: Gauge "topo_lb_programs_in_front" []
        "Programs of others that see packets of clients outside before topo-lb's",
        "At XDP, tcx and tc, without those of `--tolerate-programs`. Above zero the agent is not ready";
    UNASKED_CGROUPS: Gauge "topo_lb_unasked_cgroups" []
        "Cgroups that wait to be asked which programs run there", "";
    SERVICES: Gauge "topo_lb_services" []
        "Services that there are", "";
    UNHANDLED_SERVICES: Gauge "topo_lb_unhandled_services" []
        "Services that are left to kube-proxy and not counted, because they have no policy (--scope opt-in)", "";
    WAITING_SERVICES: Gauge "topo_lb_waiting_services" []
        "Services that wait for the labels of other Nodes: the maps keep what they have for them",
        "Above zero for some seconds while [all Nodes are listed](topology.md#which-nodes-an-agent-watches), and as \
         long as the agent cannot list them";
    EXCLUDED_PODS: Gauge "topo_lb_excluded_pods" []
        "Pods of this node whose connections are left alone",
        "[Excluded Pods](operations.md#exclude-pods-service-meshes)";
    STEERED_PODS: Gauge "topo_lb_steered_pods" []
        "Pods of this node that get near endpoints in place of far ones that they dial by address",
        "[`topo-lb.io/direct: steer`](topology.md#steer-direct-dials)";
    UNEXCLUDED_PODS: Gauge "topo_lb_unexcluded_pods" []
        "Pods of this node that are to be left alone or steered, and for which there is no room", "Should be zero";
    LEFT_OUT_SERVICES: Gauge "topo_lb_left_out_services" []
        "Services that have no room in the maps, and are left to kube-proxy, or served by nobody where there is none",
        "";
    NARROWED_SERVICES: Gauge "topo_lb_narrowed_services" []
        "Services that use at most 6 of their endpoints, as the maps are full", "";
    STALE_SERVICES: Gauge "topo_lb_stale_services" []
        "Services whose endpoints may be out of date, as the maps are full", "";
    NO_ROOM_REFUSED_SERVICES: Gauge "topo_lb_no_room_refused_services" []
        "Strict Services that are refused, as the maps are full", "`--when-full refuse-strict`";
    DIRECT_DIALS_SERVICES: Gauge "topo_lb_direct_dials_services" []
        "Services whose endpoints may be dialled directly although they refuse or steer that, as the maps are full",
        "[`topo-lb.io/direct`](topology.md#direct-dials-too-topo-lbiodirect)";
    KEPT_POLICIES: Gauge "topo_lb_kept_policies" [kind]
        "Policies that only agents have: the API server does not serve their kind any more, and they stay in force \
         until the agent restarts",
        "`kind`: `TopologyPolicy` or `ClusterTopologyPolicy`. Should be zero";
    SOURCE_TROUBLES: Counter "topo_lb_source_troubles_total" []
        "Sentences about something wrong with the API server, the manifests or an object", "The log has them";
    SOURCE_LISTINGS: Counter "topo_lb_source_listings_total" [kind]
        "Listings of all objects of a kind: at start, and after what could not be bridged by a watch",
        "`kind`: `services`, `endpointslices` or `nodes`. `nodes` also when the agent begins or ends to watch [all \
         Nodes](topology.md#which-nodes-an-agent-watches)";
    KUBERNETES_EVENTS: Counter "topo_lb_kubernetes_events_total" [outcome]
        "Kubernetes Events by what became of them",
        "`sent`, `repeated` (another node has sent the same), `failed` (attempts that the API server did not take), \
         `dropped` (too many, or the Service was gone)";
    EVACUATIONS: Gauge "topo_lb_evacuations" []
        "Objects that evacuate endpoints and hold on this node", "[Bad days](bad-days.md#empty-a-zone-a-rack-a-node)";
    SLOW_STARTS: Gauge "topo_lb_slow_starts" []
        "Services of which an endpoint gets less than its share on this node, as it became Ready lately",
        "Only of Services with `topo-lb.io/slow-start`";
    EVACUATED_SERVICES: Gauge "topo_lb_evacuated_services" [key value until]
        "Services with endpoints in what is evacuated on this node, by its label and its end",
        "`until` is empty without an end. At most 16: those without one, then those that end first";
    UNANSWERED_HEALTH_CHECKS: Gauge "topo_lb_unanswered_health_checks" [of]
        "Health checks of load balancers that the agent should answer and cannot, as their port is taken: of Services, \
         or of the node",
        "`of`: `service` or `node` ([health checks](kube-proxy-free.md#health-checks))";
    DNS_NAMES: Gauge "topo_lb_dns_names" []
        "Names of headless Services that the resolver of this node answers", "[The resolver](dns.md)";
    DNS_QUERIES: Counter "topo_lb_dns_queries_total" [outcome]
        "Queries to the resolver of this node, by what became of them",
        "`answered`, `empty` (answered without an address: the policy allows no endpoint), `forwarded` (the cluster DNS \
         answered; over TCP, has got it), `failed` (it did not answer within 5 s), `dropped` (given up, because too \
         many were on their way)";
    EJECTED_ENDPOINTS: Gauge "topo_lb_ejected_endpoints" []
        "Endpoints that this node ejects, because its connects to them failed",
        "[Ejection](reliability.md#endpoints-to-which-connects-fail)";
    EJECTIONS: Counter "topo_lb_ejections_total" [reason]
        "Times that an endpoint was ejected, by how the last connect to it failed",
        "`reason`: as in `topo_lb_connect_failures_total`";
    EJECTION_PROBES: Counter "topo_lb_ejection_probes_total" [outcome]
        "Probes of endpoints that were ejected, by what they have shown",
        "`answered`, `failed` (it does not answer, and another endpoint does), `unknown` (neither does)";
    ISLAND: Gauge "topo_lb_island" []
        "1 if this node has heard nothing from its API server for `--island-after`, and finds dead endpoints itself",
        "[Islands](edge.md#an-island)";
    DEAD_ENDPOINTS: Gauge "topo_lb_dead_endpoints" []
        "Endpoints that do not answer this node, which is an island, and get no new connections of it", "";
    SILENT_SERVICES: Gauge "topo_lb_silent_services" []
        "Services with a port of which no endpoint answers this node, which is an island: its connections go on as before",
        "It may be the node's own network that is broken";
    ISLAND_PROBES: Counter "topo_lb_island_probes_total" [outcome]
        "Connects to endpoints by which a node that is an island finds out who is dead, by what came of them",
        "`accepted`, `refused`, `silent`, `unasked` (this host could not connect, which says nothing of the endpoint)";
    ENDED_SOCKETS: Counter "topo_lb_ended_sockets_total" [protocol]
        "Connected sockets of applications that were ended because their endpoint serves no more, or because they \
         connected before their Service was served",
        "`udp`, and `tcp` with `--terminate-tcp` ([when](reliability.md#when-an-endpoint-is-gone))";
    UNENDED_SOCKETS: Counter "topo_lb_unended_sockets_total" []
        "Times that sockets of a network namespace could not be looked for or ended, and times that endpoints went \
         faster than that",
        "The log gives the reason, once";
    RETURNED_SOCKETS: Counter "topo_lb_returned_sockets_total" []
        "Idle TCP connections to a wider tier that were ended, so that their clients return to a nearer one",
        "Only of Services with `topo-lb.io/return`";
    RETURNED_BYTES: Counter "topo_lb_returned_bytes_total" []
        "Bytes that these connections had moved in both directions when they were ended",
        "Beside the time that a connection was open, it says what comes home";
    WIDER_TIER_CONNECTIONS: Gauge "topo_lb_wider_tier_connections" [namespace service port]
        "Open TCP connections of this node to endpoints in a wider tier than the one in force, whether or not the \
         Service asks for their return",
        "Counted [once a minute](bad-days.md#the-zone-is-back-and-the-traffic-is-not), of Service ports that had \
         connections; none where the agent does not know: without \
         [what ending sockets needs](reliability.md#what-ending-sockets-needs), UDP, session affinity";
    AWAY_SOCKETS: Gauge "topo_lb_away_sockets" [state]
        "TCP connections to a wider tier although a nearer one has been back for the time of `topo-lb.io/return`, as \
         the last search saw",
        "`waiting` (idle: they end in their turn), `in-use`, `forbidden` (the agent may not open them, so it does not \
         know whether they are among these)";
    HIDDEN_PROCESSES: Gauge "topo_lb_hidden_processes" []
        "Processes whose connections the last search for those that return could not look for",
        "Should be zero: [what it needs](reliability.md#what-ending-sockets-needs)";
    START_TIMESTAMP: Gauge "topo_lb_start_timestamp_seconds" []
        "When the agent started, since 1970", "";
    BUILD: Info "topo_lb_build_info" [version]
        "The version of the agent", "";
}
