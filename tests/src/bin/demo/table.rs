//! The table of a chapter: who called, through which Service, who answered how often, which tier,
//! and why. The reason is a sentence on a line of its own below the row.

use std::fmt::Write as _;
use std::time::Duration;

use textwrap::Options;
use topo_lb_tests::kind::{
    BEIJING_CLIENT, HANGZHOU, HANGZHOU_CLIENT, NEIGHBOUR, SHANGHAI, SHANGHAI_CLIENT,
};
use topo_lb_tests::traffic::Via;

use crate::bytes::Account;
use crate::check::{REQUESTS, Report};
use crate::stage::Row;
use topo_lb_tests::paint::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, paint};

/// Width of the page, in columns.
const WIDTH: usize = 100;
/// Width of the check and its caller.
const WHO: usize = 33;
/// Width of the Service and its address.
const THROUGH: usize = 25;
/// Width of a pod that answered.
const POD: usize = 14;
/// Width of the bar of a pod that answered every request.
const BAR: usize = 20;

/// Formats a chapter.
pub(crate) fn chapter(title: &str, about: &str, rows: &[Row], moral: &str) -> String {
    let mut text = String::new();
    let rule = "━".repeat(WIDTH.saturating_sub(title.chars().count() + 4));
    let _ = writeln!(text, "\n{}", paint(BOLD, &format!("━━ {title} {rule}")));
    let _ = writeln!(text, "{about}\n");
    let head =
        format!("  {:<WHO$}{:<THROUGH$}WHO ANSWERED, OF {REQUESTS}", "WHO CALLED", "THROUGH");
    let _ = writeln!(text, "{}", paint(DIM, &head));
    for row in rows {
        text += &show(row);
    }
    if !moral.is_empty() {
        let _ = writeln!(text, "\n{moral}");
    }
    text
}

fn show(row: &Row) -> String {
    let who = [row.check.name.clone(), format!("from {}, {}", short(&row.check.from), row.node)];
    let through = [row.service.clone(), frontend(row)];
    let answers = answers(row);
    let mut text = String::new();
    for line in 0..answers.len().max(2) {
        let mark = match (line, row.check.ok) {
            (0, true) => paint(GREEN, "✓"),
            (0, false) => paint(RED, "✗"),
            _ => " ".to_owned(),
        };
        let cell = |cells: &[String]| cells.get(line).cloned().unwrap_or_default();
        let who = format!("{:<WHO$}", cell(&who));
        let who = if line == 0 { paint(BOLD, &who) } else { paint(DIM, &who) };
        let through = paint(CYAN, &format!("{:<THROUGH$}", cell(&through)));
        let answer = cell(&answers);
        let answer = match (row.check.ok, row.tally.replies.is_empty()) {
            (false, _) => paint(RED, &answer),
            (true, true) => paint(YELLOW, &answer),
            (true, false) => paint(GREEN, &answer),
        };
        let _ = writeln!(text, "{}", format!("{mark} {who}{through}{answer}").trim_end());
    }
    let options = Options::new(WIDTH).initial_indent("  ↳ ").subsequent_indent("    ");
    for line in textwrap::wrap(&why(row), options) {
        let _ = writeln!(text, "{}", paint(DIM, &line));
    }
    text
}

/// The last lines.
pub(crate) fn summary(report: &Report, took: Duration) -> String {
    let (all, ok) = (report.checks.len(), report.checks.iter().filter(|check| check.ok).count());
    let requests: u32 = report.checks.iter().map(|check| check.requests).sum();
    let verdict = format!("{ok} of {all} checks ok");
    let verdict = if ok == all { paint(GREEN, &verdict) } else { paint(RED, &verdict) };
    format!(
        "\n{}: {requests} real requests in {:.1} s, and nothing is left behind.\n{}",
        paint(BOLD, &verdict),
        took.as_secs_f64(),
        bytes(report.bytes.as_ref())
    )
}

fn bytes(account: Option<&Account>) -> String {
    match account {
        None => {
            "Bytes are not counted: this kernel lacks what accounting takes (topo-lb check).".into()
        }
        Some(account) if account.is_exact() => account.sentence(),
        Some(Account { counted, moved, .. }) => paint(
            RED,
            &format!("The agents counted {counted:?}, but the pods' programs moved {moved:?}."),
        ),
    }
}

fn frontend(row: &Row) -> String {
    let protocol = match row.via {
        Via::Http => "TCP",
        Via::HttpMptcp => "MPTCP",
        Via::Udp | Via::UdpConnected => "UDP",
    };
    format!("{} {protocol}", row.to)
}

fn answers(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    for (pod, &count) in &row.tally.replies {
        lines.push(format!("{:<POD$} {count:>3} {}", short(pod), bar(count)));
    }
    for (failure, count) in &row.tally.failures {
        lines.push(if failure.is_refusal() {
            format!("{count} refused, in {} µs each", row.tally.median_us)
        } else {
            format!("{count} failed: {failure}")
        });
    }
    lines
}

/// A bar in eighths of a column.
fn bar(count: u32) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = count as usize * BAR * 8 / REQUESTS as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn why(row: &Row) -> String {
    match row.decision.tier {
        Some(tier) => format!("tier {tier} · {}", row.decision.reason),
        None => row.decision.reason.clone(),
    }
}

/// The short name of a pod.
fn short(pod: &str) -> String {
    let last = pod.rsplit('-').next().unwrap_or(pod);
    match pod {
        HANGZHOU_CLIENT => "hangzhou".to_owned(),
        SHANGHAI_CLIENT => "shanghai".to_owned(),
        BEIJING_CLIENT => "beijing".to_owned(),
        NEIGHBOUR => pod.to_owned(),
        _ if HANGZHOU.contains(&pod) => format!("hangzhou-{last}"),
        _ if SHANGHAI.contains(&pod) => format!("shanghai-{last}"),
        _ => pod.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use topo_lb_tests::kind::SERVERS;

    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!(bar(200), "█".repeat(20));
        assert_eq!(bar(0), "");
        assert_eq!(bar(105), format!("{}▌", "█".repeat(10)));
    }

    #[test]
    fn every_name_fits_its_column() {
        for pod in SERVERS.into_iter().chain([NEIGHBOUR]) {
            assert!(short(pod).len() <= POD, "{pod}");
        }
    }
}
