//! What `try` prints for people.

use std::fmt::Write as _;

use super::world::SERVICE;
use super::{CONNECTIONS, Check, Report};
use topo_lb_core::explain;

/// The width of a bar that stands for all connections.
const BAR: u32 = 20;

/// What is set up.
pub(super) fn opening() -> String {
    let (address, port) = SERVICE;
    format!(
        "Two zones on this machine, with a node, an agent and two Pods each, in namespaces of this command.\n\
         Real connections to Service default/web, {address}:{port}, {CONNECTIONS} from each zone"
    )
}

/// One chapter: who called, and who answered; then why.
pub(super) fn chapter(
    about: &str,
    checks: &[Check],
    why: &explain::Report,
    colour: bool,
) -> String {
    let [bold, plain] = if colour { ["\x1b[1m", "\x1b[0m"] } else { ["", ""] };
    let mut text = format!("\n{bold}{about}{plain}\n");
    for check in checks {
        let mark = if check.ok { '✓' } else { '✗' };
        let answers = check.answers.iter().map(|(zone, count)| (*zone, *count));
        let refused = Some(("refused", check.refused)).filter(|(_, count)| *count > 0);
        for (at, (who, count)) in answers.chain(refused).enumerate() {
            let from = if at == 0 { format!("{mark} from {}", check.from) } else { String::new() };
            let bar = "█".repeat((count * BAR / CONNECTIONS) as usize);
            let _ = writeln!(text, "{from:<15} → {who:<8} {count:>3} {bar}");
        }
    }
    for service in &why.services {
        let _ = writeln!(text, "  ↳ on {}: {}", why.node, service.decision.reason);
    }
    text
}

/// The line after the end.
#[must_use]
pub fn summary(report: &Report) -> String {
    let good = report.checks.iter().filter(|check| check.ok).count();
    format!("\n{good} of {} checks ok, and nothing is left behind.", report.checks.len())
}
