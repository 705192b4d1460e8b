//! The report as plain text, for a terminal and for bug reports.

use std::fmt::Write;
use std::net::SocketAddr;

use comfy_table::{Attribute, Cell, Color, Table, presets};
use topo_lb_common::backend::Locality;

use super::quoted::{sentence, shown, shown_id, some};
use super::{Policy, Port, Report, ServicePort};

/// The report as text, with colours if `colour` is set.
#[must_use]
pub fn table(report: &Report, colour: bool) -> String {
    let paint = Paint { colour };
    let mut text = format!("{}\n", paint.bold(&report.about));
    for service in &report.services {
        text.push('\n');
        text += &one(service, paint);
    }
    text.push('\n');
    for id in &report.unknown {
        let _ = writeln!(text, "{}: there is no such Service", shown_id(id));
    }
    for (id, why) in &report.skipped {
        let _ = writeln!(text, "{}: skipped, {why}", shown_id(id));
    }
    text += &total(report);
    text
}

fn one(service: &ServicePort, paint: Paint) -> String {
    let addresses: Vec<_> = service.cluster_ips.iter().map(ToString::to_string).collect();
    let port = port_text(&service.port);
    let title = format!(
        "{}/{}  {} {port}  {}",
        shown(&service.namespace),
        shown(&service.name),
        service.port.protocol,
        addresses.join(" "),
    );
    let policy = policy_text(&service.policy);
    let verdict = match service.decision.tier {
        Some(tier) if service.policy.keys.len() > 1 => {
            format!(
                "{} by key {} of {}",
                service.decision.verdict,
                tier + 1,
                service.policy.keys.len()
            )
        }
        _ => service.decision.verdict.to_owned(),
    };
    let mut text = format!("{}\n", paint.bold(&title));
    let _ = writeln!(text, "  policy    {policy}");
    if !service.policy.passed_over.is_empty() {
        let over = service.policy.passed_over.iter().map(String::as_str);
        let _ = writeln!(text, "  over      {}", some(over, 8));
    }
    for trial in &service.policy.trials {
        let _ = writeln!(text, "  trial     {}", sentence(trial));
    }
    if let Some(ejection) = &service.policy.ejection {
        let _ = writeln!(text, "  ejection  {ejection}");
    }
    for evacuation in &service.policy.evacuations {
        let _ = writeln!(text, "  evacuates {}", sentence(evacuation));
    }
    if let Some(after) = &service.policy.return_after {
        let _ = writeln!(text, "  return    {after}");
    }
    if let Some(slowly) = &service.policy.slow_start {
        let _ = writeln!(text, "  starts    {slowly}");
    }
    for error in &service.policy.errors {
        let _ = writeln!(text, "  error     {}", paint.warn(error));
    }
    let _ = writeln!(
        text,
        "  decision  {}: {}",
        paint.verdict(service.decision.verdict, &verdict),
        service.decision.reason
    );
    if let Some(would) = &service.would {
        let verdict = paint.verdict(would.verdict, would.verdict);
        let _ = writeln!(text, "  would     {verdict}: {}", would.reason);
    }
    if let Some(direct) = &service.direct {
        let _ = writeln!(text, "  direct    {direct}");
    }
    for tiers in &service.tiers {
        let _ = writeln!(text, "  matches   {tiers}");
    }
    if let Some(exposed) = &service.exposed {
        let _ = writeln!(text, "  also at   {}", exposed.line());
        let outside = &exposed.outside;
        let is_same = (outside.verdict, &outside.reason)
            == (service.decision.verdict, &service.decision.reason);
        let verdict = paint.verdict(outside.verdict, outside.verdict);
        let _ = match is_same {
            true => {
                writeln!(text, "  outside   {verdict}: the same for clients outside of the node")
            }
            false => writeln!(text, "  outside   {verdict}: {}", outside.reason),
        };
        if let Some(choice) = exposed.choice {
            let _ = writeln!(text, "  choice    {choice}");
        }
        if let Some(direct_return) = &exposed.direct_return {
            let _ = writeln!(text, "  returns   directly: {direct_return}");
        }
        for nodes in &exposed.other_nodes {
            let _ = writeln!(text, "  to nodes  {nodes}");
        }
    }
    if !service.endpoints.is_empty() {
        text += &endpoints(service, paint);
    }
    text
}

pub(crate) fn port_text(port: &Port) -> String {
    match &*port.name {
        "" => port.port.to_string(),
        name => format!("{} ({})", port.port, shown(name)),
    }
}

pub(crate) fn policy_text(policy: &Policy) -> String {
    let keys: Vec<_> = policy.keys.iter().map(|key| shown(key)).collect();
    let source = policy.object.as_deref().map_or_else(|| policy.source.to_owned(), shown);
    let spill = policy.spill.as_ref().map(|spill| format!("; spill {spill}")).unwrap_or_default();
    match &keys[..] {
        [] => source,
        keys => format!("{source}: {}{spill}", keys.join(", ")),
    }
}

fn endpoints(service: &ServicePort, paint: Paint) -> String {
    let mut table = empty(paint.colour);
    table.set_header(
        ["  ", "ENDPOINT", "NODE", "ZONE", "SHARED", "WHY"].map(|name| paint.dim(name)),
    );
    for endpoint in &service.endpoints {
        let mark = if endpoint.selected { " ✓" } else { " ·" };
        let place = |name: &Option<String>| name.as_deref().map_or("-".to_owned(), shown);
        let cells = [
            mark.to_owned(),
            SocketAddr::new(endpoint.address, endpoint.port).to_string(),
            place(&endpoint.node),
            place(&endpoint.zone),
            shared(endpoint.locality).to_owned(),
            endpoint.reason.clone(),
        ];
        table.add_row(cells.map(|text| match endpoint.selected {
            true => paint.good(&text),
            false => paint.dim(&text),
        }));
    }
    table.trim_fmt() + "\n"
}

/// A table without lines; `colour` keeps the colours of its cells.
#[must_use]
pub fn empty(colour: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if colour {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    table
}

/// The nearest of node, zone and region that an endpoint shares with this node.
const fn shared(locality: Locality) -> &'static str {
    match locality {
        Locality::Elsewhere => "-",
        nearer => nearer.name(),
    }
}

fn total(report: &Report) -> String {
    let verdicts = |verdict| {
        report.services.iter().filter(|service| service.decision.verdict == verdict).count()
    };
    let errors = report.services.iter().filter(|service| service.policy.error.is_some()).count();
    let ports = report.services.len();
    let mut text = format!(
        "{ports} Service {}: {} routed, {} refused, {} left to kube-proxy",
        if ports == 1 { "port" } else { "ports" },
        verdicts("route"),
        verdicts("refuse"),
        verdicts("bypass"),
    );
    match verdicts("wait") {
        0 => {}
        1 => text += ", 1 waits for labels of other Nodes",
        waiting => text += &format!(", {waiting} wait for labels of other Nodes"),
    }
    match errors {
        0 => {}
        1 => text += "; 1 has an annotation or field that is ignored",
        _ => text += &format!("; {errors} have annotations or fields that are ignored"),
    }
    text.push('\n');
    text
}

#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

impl Paint {
    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn warn(self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn verdict(self, verdict: &str, text: &str) -> String {
        match verdict {
            "route" => self.wrap("32", text),
            "refuse" | "drop" => self.wrap("31", text),
            _ => self.wrap("33", text),
        }
    }

    fn good(self, text: &str) -> Cell {
        if self.colour { Cell::new(text).fg(Color::Green) } else { Cell::new(text) }
    }

    fn dim(self, text: &str) -> Cell {
        if self.colour { Cell::new(text).add_attribute(Attribute::Dim) } else { Cell::new(text) }
    }
}
