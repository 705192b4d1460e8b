//! docs/performance.md and its pictures, made only from the report beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::curve::curves;
use crate::result::{Figure, Report, readable, rows};

/// The folder of the pictures, beside the page.
const PICTURES: &str = "performance";

/// The report that page and pictures are made from.
const REPORT: &str = "performance/report.json";

/// Writes the report into `folder`, and the page and the pictures made from it.
///
/// # Errors
/// The report lacks a part (then nothing is written), or a file cannot be made.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<()> {
    let report = report.json()?;
    let mut files = made_from(&report)?;
    files.insert(REPORT.into(), report);
    let pictures = folder.join(PICTURES);
    fs::create_dir_all(&pictures)?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text)?;
    }
    Ok(())
}

/// The page and the pictures of a report in JSON, by their paths in the folder.
fn made_from(report: &str) -> Result<BTreeMap<PathBuf, String>> {
    let report = Report::read(report)?;
    let mut files = BTreeMap::from([(PathBuf::from("performance.md"), page(&report)?)]);
    for curve in curves(&report.results) {
        files.insert(format!("{PICTURES}/{}.svg", curve.file).into(), curve.svg()?);
    }
    Ok(files)
}

/// The parts of the page: title, text, names of the figures.
const PARTS: [(&str, &str, &[&str]); 9] = [
    (
        "Connect path",
        "Connect, 64 bytes to the server, 64 bytes back, close: between two pods of one node, both \
         processes on one core. Paths take turns of 200 exchanges; a ratio is the median of a turn \
         by that of the turn without any proxy in the same round, and p99 and the quartiles of a \
         ratio are over the rounds. *One Service* dials the same ClusterIP again and again, as \
         most clients do; *any Service* another one of all each time. *Direct* is traffic that is \
         no Service's. Each peer has a node of its own with the same Services. *nftables* is a \
         set of rules of the shape that kube-proxy writes in that mode, up to 10,000 Services. \
         *kube-proxy 1.20 iptables* is kube-proxy itself, of the last versions with Service \
         Topology, compiled from Debian's source; what is a policy's annotation for topo-lb is \
         `topologyKeys` for it. It has its defaults but for `--cluster-cidr`, as kubeadm sets it, \
         the feature gates `ServiceTopology` and `EndpointSliceProxying`, and \
         `--conntrack-max-per-core=0`, as that limit is the whole machine's. Its iptables is that \
         of the *legacy* tables where the kernel has them, as its image chooses on a node without \
         rules, and otherwise that of *nf_tables*. It is measured when its rules are whole and it \
         rests. A packet meets its rules one after the other, in an order of chance: what is no \
         Service's meets all of them, *any Service* half of them on average, and *one Service* \
         any number. topo-lb runs beside a kube-proxy in a cluster: where that one is in this mode, \
         what topo-lb has translated is no Service's to it, and takes what its *direct* says.",
        &["connect_ratio", "other_traffic_ratio", "exchange_us"],
    ),
    (
        "Accounting",
        "Short connections (connect, 64 bytes to the server, 64 bytes back, close) to one of 100 Services, \
         with the program that counts bytes and round trips attached, and without it, in turns of 2,000. \
         *accounting_processor_ratio* is the processor time of the whole node with the program by that \
         without it in the same round: client, server, and the kernel's work for both. \
         *accounting_exchange_ratio* is the same of the median time of a connection. *walk_100k_ms* is the \
         processor time of the walk over open connections that a scrape makes; each of them has moved \
         bytes since the last walk. *untranslated_processor_ratio* and *untranslated_exchange_ratio* are the same with \
         `--count all` for connections that topo-lb does not translate, what the agent does with them included: *left* \
         ones go to a Service by a rule of nftables, *direct* ones to the pod. *missed_endpoint_ratio* is the median \
         time of a connection to a pod that is no endpoint, with the program of `connect` by that with an empty program.",
        &[
            "accounting_processor_ratio",
            "accounting_exchange_ratio",
            "untranslated_processor_ratio",
            "untranslated_exchange_ratio",
            "missed_endpoint_ratio",
            "walk_100k_ms",
        ],
    ),
    (
        "Clients outside",
        "A client outside of the nodes dials node ports: connect, 64 bytes to the server, 64 bytes back, \
         close. It takes ports of its own at random, as the kernel does for a client of many targets: if the \
         kernel chose them for a client of a single one, too, the plain way would be dialled from ports in sequence, \
         which takes less time. *local*: the endpoint is on the node that is dialled; *remote*: on another one. A ratio \
         (*than=nothing*) is by the same way, with as many hops, through a node where nothing \
         translates and the kernel tracks no connection; *than=connection tracking* is by a node \
         that does track, as nodes of most clusters do for their network plugin. \
         *external_other_ratio* is traffic to a pod that is no endpoint. *external_noise_ratio* is \
         plain forwarding by itself. Datagrams have 64 bytes and go in bursts of 64, of which the \
         server answers the last one: *external_udp_pps_ratio* is their rate by that of plain \
         forwarding. *external_serial_kcps* are thousands of connections a second of a client that dials one \
         local node port for 20 s, one connection after the other, and closes each at once; *external_serial_pause_ms* is \
         the longest time that one of them took (promised as p99), and *nothing* is a pod on a node without a proxy. The peers are those of the connect path; every proxy has a node of its own \
         with the same Services, half of them local and half remote. *external_remote_ratio* is \
         promised to be at most that of *nftables* with the fewest Services. \
         The rows of XDP are frames of 64 bytes as from a card: the kernel makes them at the rate of one \
         core (`BPF_F_TEST_XDP_LIVE_FRAMES`) without an skb, which a frame that a process has sent already has on a \
         veth device. A thread of the kernel takes them (threaded NAPI), on another core than all else, and \
         *xdp_drop_ns*, *xdp_forward_ns* and *xdp_oneway_ns* are its CPU time for a frame that it has taken: all that the \
         node spends. The other end of the device drops what it gets, or is the endpoint and answers at once. \
         *xdp_drop_ratio* is tc's time by that of XDP for datagrams that `loadBalancerSourceRanges` deny: topo-lb with \
         `--xdp off` by that with `--xdp any`; for *empty programs*, of programs that do nothing but drop. \
         *xdp_forward_ratio* is datagrams to a node port and their answers, with the endpoint on another node: \
         the time by the rules of *nftables* by that of topo-lb. *xdp_oneway_ratio* is the same of \
         datagrams that nobody answers. *xdp_swap_kpps* is the rate of one core, by its CPU time, at which XDP sends on \
         datagrams of established flows to an endpoint of another node, and a program of XDP that swaps the addresses \
         of every datagram and sends it back; *xdp_swap_ratio* is the one by the other. \
         *external_direct_ratio* (new connections) and *external_direct_open_ratio* (exchanges on an open one) are a load \
         balancer IP whose endpoints are on another node, with direct return: by forwarding without any proxy on the same \
         way, the request by one node, the answer straight from the other. There are 100 such Services of two endpoints; \
         *source NAT* is one that has no direct return, whose answers go back by the first node. *xdp_direct_kpps* and \
         *xdp_direct_ratio* are as *xdp_swap_ratio* of known flows with direct return.",
        &[
            "external_local_ratio",
            "external_remote_ratio",
            "external_other_ratio",
            "external_udp_pps_ratio",
            "external_noise_ratio",
            "external_direct_ratio",
            "external_direct_open_ratio",
            "external_serial_kcps",
            "external_serial_pause_ms",
            "xdp_drop_ratio",
            "xdp_forward_ratio",
            "xdp_oneway_ratio",
            "xdp_swap_ratio",
            "xdp_direct_ratio",
            "external_us",
            "external_direct_us",
            "external_direct_open_us",
            "external_udp_kpps",
            "xdp_drop_ns",
            "xdp_forward_ns",
            "xdp_oneway_ns",
            "xdp_swap_kpps",
            "xdp_direct_kpps",
        ],
    ),
    (
        "DNS",
        "A pod asks a server in another pod of its node, by UDP: by a ClusterIP that leads there \
         (*direct*), and by that of the cluster DNS, which leads to the agent's resolver. This one hands \
         most names on to the same server (*forwarded*), and answers those of annotated headless Services \
         (*own*). Client, server and the thread of the resolver are on one core: between two cores, a machine \
         adds the time that they take to wake one another. *dns_us* is the time of a query and its answer: the \
         median of a turn of 200, and all paths take turns; *dns_added_us* is that of *forwarded* less that \
         of *direct* in the same round. For *dns_kqps* the thread of the resolver is bound to one core, \
         client and server share the other one, and 64 queries wait for an answer at any time. \
         *dns_thread_us* is the processor time of that thread for each of these queries.",
        &["dns_added_us", "dns_kqps", "dns_us", "dns_thread_us"],
    ),
    (
        "In the kernel",
        "Run time by the kernel's own BPF statistics, which include the cost of taking the time: \
         see the empty program. A value is the mean of 1,000 calls. All programs take turns, and a \
         ratio (*_x*) is a program's value by that of the empty program in the same round: clock \
         and caches of a machine change from minute to minute, for both alike. The values themselves \
         (*_ns*) are in the report. *connect4_any* \
         dials another of all Services each time, *recvmsg_miss* is a datagram that a process \
         without Services receives. *connect4_weights_ratio* and *connect4_weights_reverse_ratio* (without \
         and with reverse state) are a Service with weights of three parts by one with the same six \
         endpoints without weights, in the same round. *tc_test_run_ns* is a packet at its best: one that the kernel \
         runs through a program 20,000 times (`BPF_PROG_TEST_RUN`), with everything in the nearest \
         cache. *services_write_ms* is the time of the agent's writes to new maps of the \
         Services' decisions (*maps=services4, records4*), and with those of their names and \
         counters (*maps=all*). *services_memory_mb* is the memory of `services4` and `records4` \
         as the kernel counts it, with room for this many Services.",
        &[
            "connect4_hit_x",
            "connect4_hit_reverse_x",
            "connect4_any_x",
            "connect4_weights_ratio",
            "connect4_weights_reverse_ratio",
            "recvmsg_miss_x",
            "tc_other_x",
            "tc_established_x",
            "services_write_ms",
            "services_memory_mb",
            "hook_ns",
            "tc_test_run_ns",
        ],
    ),
    (
        "Control plane",
        "The agent follows an API server that stands in for the real one at these sizes. From the \
         last page of the last list to the last map written, programs attached; from one watch \
         event to the new value in the kernel's map, at 100 changes a second; a second start on \
         the maps of the first. With *policies*, no Service has one of its own: 50 TopologyPolicies \
         and 50 ClusterTopologyPolicies select them. *policy_seconds* is from the event of one that \
         selects all of them to the last record, *evacuation_seconds* the same of one that empties a zone, for the Services with endpoints there, and *policy_failures* counts what failed of the \
         connections of a client that connects to Services of it all the time. \
         *services_added_cpu_seconds* and *services_deleted_cpu_seconds* are the agent's processor time for so many Services \
         (*changed*) that come or go at once, when each of the others has had a connection. *maglev_build_ms* is the processor time to \
         make the largest table of a consistent choice, *maglev_change_ms* that of its successor without one endpoint. The \
         other rows of *consistent* are Services of 100 endpoints with such a choice: one endpoint of one of them goes and \
         another comes, until the new table is in the map, with `--max-endpoints` for all of them (*room*); *narrowed* have \
         no table for lack of it.",
        &[
            "program_seconds",
            "start_seconds",
            "start_cpu_seconds",
            "restart_seconds",
            "restart_writes",
            "event_to_map_p99_ms",
            "policy_seconds",
            "evacuation_seconds",
            "policy_failures",
            "services_added_cpu_seconds",
            "services_deleted_cpu_seconds",
            "rss_mb",
            "list_mb",
            "probe_ms",
            "scrape_ms",
            "cpu_idle_percent",
            "cpu_churn_percent",
            "status_mb_per_hour",
            "status_cpu_seconds_per_hour",
            "maglev_build_ms",
            "maglev_change_ms",
            "consistent_event_to_map_p99_ms",
            "consistent_churn_percent",
            "consistent_start_seconds",
            "consistent_narrowed",
            "consistent_rss_mb",
            "consistent_maps_mb",
        ],
    ),
    (
        "A rolling update on 5,000 nodes",
        "Every pod of one Service is replaced, three events each. The pure part of the agent \
         (state, topology, plan) is run for some of the nodes; the sum is for all of them. *evacuation_fleet_seconds* is \
         the same of the agents of 100 nodes, all on this machine, from the word that empties one of three zones until the last one has planned it.",
        &[
            "rollout_event_ms",
            "rollout_node_seconds",
            "rollout_cluster_seconds",
            "evacuation_fleet_seconds",
        ],
    ),
    (
        "The page of `topo-lb view`",
        "In headless Chromium without a GPU. The API server and the answers of all agents are made up, and \
         their server, `topo-lb view` and the browser share the machine. *view_first_paint_ms*: from opening \
         the page to all groups, nodes and rates, with a look at all agents every two seconds. \
         *view_longest_frame_ms*: the longest time between two frames of the browser in ten seconds while \
         the page gets ten updates a second, which the server has sent it before; \
         *view_updates_per_second* is how many of them were drawn. A thousand agents are not asked that \
         often.",
        &["view_first_paint_ms", "view_longest_frame_ms", "view_updates_per_second"],
    ),
    (
        "What to bind first",
        "`topo-lb plan --advise` of Services of 10 endpoints in three zones, none with a policy, from manifests and a \
         file of metrics for each node, whose clients use 100 of the Services at three distances.",
        &["advise_seconds", "advise_mb"],
    ),
];

/// Parts that are newer than the last whole run.
const NEWER: [&str; 3] = ["DNS", "The page of `topo-lb view`", "What to bind first"];

fn page(report: &Report) -> Result<String> {
    let mut text = String::from(
        "<!-- Written by `cargo xtask bench --write-docs`; what is changed by hand is lost. -->\n\
         # Performance\n\n",
    );
    let _ = writeln!(
        text,
        "Every number here is of [one report]({REPORT}), which also has 99th percentiles, quartiles and what is too \
         long for a page. Not all of it is of one run, or of one machine: each table says which run of `{}` it is of.\n",
        report.machine.command(),
    );
    text.push_str(&promises(&report.results));
    text.push_str(include_str!("why.md"));
    for (title, about, names) in PARTS {
        let of_it: Vec<&Figure> = names
            .iter()
            .flat_map(|name| report.results.iter().filter(move |figure| figure.name == *name))
            .collect();
        if of_it.is_empty() && NEWER.contains(&title) {
            let _ = write!(text, "\n## {title}\n\n{about}\n\nThis report has no figures of it.\n");
            continue;
        }
        // A page of some parts would drop the other parts of the previous page.
        ensure!(
            !of_it.is_empty(),
            "the report has nothing for *{title}*, and a page has all parts: measure without --part"
        );
        let _ = write!(text, "\n## {title}\n\n{about}\n\n{}", runs(report, &of_it));
        text.push_str(&markdown(&of_it));
    }
    text.push_str("\n## Growth\n");
    for curve in curves(&report.results) {
        let sentences = curve.sentences().replace("\n- ", " ");
        let _ = write!(
            text,
            "\n![{}]({PICTURES}/{}.svg)\n**{}.** {}",
            curve.title,
            curve.file,
            curve.title,
            sentences.trim_start_matches("- ")
        );
    }
    Ok(text)
}

/// How many promises are kept, and which are not.
fn promises(all: &[Figure]) -> String {
    let promised: Vec<&Figure> = all.iter().filter(|figure| figure.met.is_some()).collect();
    let missed: Vec<&Figure> =
        promised.iter().copied().filter(|figure| figure.met == Some(false)).collect();
    let kept = promised.len() - missed.len();
    let mut text = format!(
        "## What is promised\n\nA target in a table is a promise: {kept} of {} are kept.",
        promised.len()
    );
    if !missed.is_empty() {
        let _ = write!(text, " These are missed:\n\n{}", markdown(&missed));
    }
    text.trim_end().to_owned() + "\n"
}

/// The runs that figures are of, each with the machine that it was on; the names, if there are several.
fn runs(report: &Report, figures: &[&Figure]) -> String {
    let mut names_of: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for figure in figures {
        let later = report.later.iter().position(|run| run.names.contains(&figure.name));
        let names = names_of.entry(later.map_or(0, |place| place + 1)).or_default();
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let is_one = names_of.len() == 1;
    let lines = names_of.into_iter().map(|(run, names)| {
        let machine = match run.checked_sub(1) {
            Some(later) => &report.later[later].machine,
            None => &report.machine,
        };
        let names = names.iter().map(|name| format!("*{name}*")).collect::<Vec<_>>().join(", ");
        let whose = if is_one { String::new() } else { format!("{names}: ") };
        // Two spaces at the end break the line.
        format!("> {whose}run {} of {}: {}", run + 1, report.later.len() + 1, machine.sentence())
    });
    lines.collect::<Vec<_>>().join("  \n") + "\n\n"
}

/// Figures of one name without a target that stay in the report, if they take more rows.
const MOST_ROWS: usize = 8;

/// A table of medians, with a row for all sizes of what is measured.
fn markdown(figures: &[&Figure]) -> String {
    let mut rows: Vec<Vec<&Figure>> = Vec::new();
    for figure in figures {
        match rows.iter_mut().find(|row| is_same_but_for_size(row[0], figure)) {
            Some(row) => row.push(figure),
            None => rows.push(vec![figure]),
        }
    }
    let is_short = |row: &&Vec<&Figure>| {
        let alike = rows.iter().filter(|other| other[0].name == row[0].name).count();
        alike <= MOST_ROWS || row.iter().any(|figure| figure.target.is_some())
    };
    let mut text = "| what | where | median | unit | target |\n|---|---|---|---|---|\n".to_owned();
    for row in rows.iter().filter(is_short) {
        let [name, shared, medians, target] = cells(row);
        let _ = writeln!(text, "| {name} | {shared} | {medians} | {} | {target} |", row[0].unit);
    }
    let left_out: BTreeSet<&str> =
        rows.iter().filter(|row| !is_short(row)).map(|row| &*row[0].name).collect();
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.into_iter().map(|name| format!("*{name}*")).collect();
        let _ = write!(text, "\nMore rows of {} are in the report.\n", names.join(", "));
    }
    text
}

fn is_same_but_for_size(one: &Figure, two: &Figure) -> bool {
    let words = |figure: &Figure| -> Vec<(String, Value)> {
        let all = figure.params.iter().filter(|(_, value)| !value.is_number());
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    one.name == two.name && one.target.is_some() == two.target.is_some() && words(one) == words(two)
}

/// Name, what the figures of a row share, their medians by what they do not, and their targets.
fn cells(row: &[&Figure]) -> [String; 4] {
    let is_shared =
        |name: &String| row.iter().all(|it| it.params.get(name) == row[0].params.get(name));
    let say = |figure: &Figure, shared: bool, between: &str| {
        let mut figure = figure.clone();
        figure.params.retain(|name, _| is_shared(name) == shared);
        figure.circumstances().replace(", ", between)
    };
    let median = |figure: &&Figure| match say(figure, false, " ") {
        size if size.is_empty() => readable(figure.median),
        size => format!("{size}: **{}**", readable(figure.median)),
    };
    let medians: Vec<_> = row.iter().map(median).collect();
    let mut targets: Vec<String> = Vec::new();
    let words = rows(&row.iter().map(|figure| (*figure).clone()).collect::<Vec<_>>());
    for [.., target] in words.into_iter().skip(1) {
        if !target.is_empty() && !targets.contains(&target) {
            targets.push(target);
        }
    }
    [row[0].name.clone(), say(row[0], true, ", "), medians.join("; "), targets.join("; ")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn what_is_in_docs_is_made_from_the_report_there() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let read = |name: &Path| {
            let text = fs::read_to_string(docs.join(name));
            text.unwrap_or_else(|error| panic!("docs/{}: {error}", name.display()))
        };
        let report = read(Path::new(REPORT));
        let mut files = made_from(&report).unwrap();
        files.insert(REPORT.into(), Report::read(&report).unwrap().json().unwrap());
        for (name, text) in &files {
            assert!(
                read(name) == *text,
                "docs/{} is not made from docs/{REPORT}: run `cargo xtask bench --write-docs \
                 --from docs/{REPORT}`",
                name.display()
            );
        }
        for entry in fs::read_dir(docs.join(PICTURES)).unwrap() {
            let name = Path::new(PICTURES).join(entry.unwrap().file_name());
            assert!(files.contains_key(&name), "docs/{} is of no report", name.display());
        }
        let page = &files[Path::new("performance.md")];
        assert!(page.lines().count() <= 250, "{} lines: nobody reads them", page.lines().count());
        for (title, ..) in PARTS {
            let part = page.split("\n## ").find(|part| part.starts_with(title)).unwrap();
            assert!(part.contains("\n> "), "of which run is *{title}*?");
        }
    }

    #[test]
    fn each_table_says_of_which_run_it_is_and_has_a_row_for_all_sizes() {
        let machine = |load| Machine { load, ..Machine::describe("full") };
        let figure =
            |name: &str, services| Figure::single(name, "us", 7.0).with("services", services);
        let mut report = Report {
            machine: machine(1.25),
            later: Vec::new(),
            results: vec![
                figure("a", 10).at_most(9.0),
                figure("a", 20).at_most(6.0),
                figure("b", 10),
            ],
        };
        let later = vec![figure("b", 30).with("way", "far")];
        report.replace(Report { machine: machine(2.5), later: Vec::new(), results: later });
        let all: Vec<_> = report.results.iter().collect();
        let (said, table) = (runs(&report, &all), markdown(&all));
        assert!(said.starts_with("> *a*: run 1 of 2: ") && said.contains("load 1.25"), "{said}");
        assert!(said.contains("\n> *b*: run 2 of 2: ") && said.contains("load 2.5"), "{said}");
        assert!(runs(&report, &all[..1]).starts_with("> run 1 of 2: "));
        let rows: Vec<_> = table.lines().skip(2).collect();
        let wanted = [
            "| a |  | services=10: **7.000**; services=20: **7.000** | us | ≤ 9.000: met; ≤ 6.000: MISSED |",
            "| b | services=30, way=far | 7.000 | us |  |",
        ];
        assert_eq!(rows, wanted);
    }
}
