//! Rows as lines that align. Later rows are not known yet, so a column grows when it has to.

use std::fmt::Display;

use super::Row;

/// What matters most comes first: a terminal may have 80 characters.
const HEAD: [&str; 9] =
    ["TIME", "OUTCOME", "SERVICE", "POD", "ENDPOINT", "LOCALITY", "TIER", "PROCESS", "FRONTEND"];
/// Most characters of a Service and a Pod that are known before any row.
const KNOWN: usize = 48;

/// The widths of columns, in characters.
#[derive(Debug)]
pub(super) struct Columns([usize; HEAD.len()]);

impl Columns {
    /// As wide as most rows need, with names of Services and Pods that have so many characters.
    pub(super) fn new(services: usize, pods: usize) -> Self {
        let [service, pod] = [services, pods].map(|known| known.clamp(18, KNOWN));
        Self([12, 8, service, pod, 16, 9, 4, 18, 20])
    }

    /// The line above all others.
    pub(super) fn head(&mut self) -> String {
        self.line(&HEAD.map(str::to_owned))
    }

    /// The line of a row, red if its connection fails, yellow if topo-lb leaves it to others.
    pub(super) fn row(&mut self, row: &Row, has_colours: bool) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let foreign =
            |text: Option<&dyn Display>| or_dash(text.map(|text| plain(&text.to_string())));
        let pod = row.pod.as_ref().map(|pod| pod as &dyn Display);
        let packet = || {
            let client = row.client.map(|client| client.to_string());
            [row.device.as_deref().map(plain), client]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let process = row.process.as_ref().map(|it| format!("{}[{}]", plain(&it.name), it.id));
        let line = self.line(&[
            row.time.strftime("%H:%M:%S.%3f").to_string(),
            row.outcome.to_owned(),
            foreign(row.service.as_ref().map(|it| it as &dyn Display)),
            if row.pod_unknown.is_some() { "?".to_owned() } else { foreign(pod) },
            or_dash(row.endpoint.map(|endpoint| endpoint.to_string())),
            or_dash(row.locality.map(str::to_owned)),
            or_dash(row.tier.map(|tier| tier.to_string())),
            process.unwrap_or_else(packet),
            row.frontend.clone(),
        ]);
        match row.outcome {
            "routed" => line,
            _ if !has_colours => line,
            "bypassed" => format!("\u{1b}[33m{line}\u{1b}[0m"),
            _ => format!("\u{1b}[31m{line}\u{1b}[0m"),
        }
    }

    fn line(&mut self, cells: &[String; HEAD.len()]) -> String {
        let mut line = String::new();
        for (width, cell) in self.0.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
            line += &format!("{cell:<width$}  ", width = *width);
        }
        line.trim_end().to_owned()
    }
}

/// Text that others choose, such as the name of a process, without what could deceive a reader or change
/// the terminal.
fn plain(text: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._:/@+- ".contains(it);
    text.chars().map(|it| if is_plain(it) { it } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use topo_lb_common::record::NO_TIER;
    use topo_lb_common::trace::{Decision, Outcome};

    use super::super::row::tests::{routed, row};
    use super::*;

    #[test]
    fn lines_align_and_a_column_grows_once() {
        let mut columns = Columns::new(0, 0);
        let head = columns.head();
        let web = columns.row(&row(&routed(), Some("default/web:http")), false);
        let at = |line: &str, word| line.find(word).unwrap_or_else(|| panic!("{line}: {word}"));
        assert_eq!(at(&head, "SERVICE"), at(&web, "default/web"));
        assert_eq!(at(&head, "OUTCOME"), at(&web, "routed"));
        assert!(web.starts_with("00:00:01.500  routed    default/web:http "), "{web}");
        let narrow: String = web.chars().take(80).collect();
        assert!(narrow.contains("10.0.0.5:8080"), "80 characters have the endpoint: {narrow}");

        let long = "a-namespace-with-a-name/a-service-with-a-name:port";
        let long = columns.row(&row(&routed(), Some(long)), false);
        let web = columns.row(&row(&routed(), Some("default/web:http")), false);
        assert_eq!(at(&long, "10.0.0.5"), at(&web, "10.0.0.5"));
        assert!(at(&web, "10.0.0.5") > at(&head, "ENDPOINT"));
        // Names that are known before any row leave every column in its place.
        let mut columns = Columns::new(30, 30);
        let head = columns.head();
        let known = columns.row(&row(&routed(), Some("default/a-service-of-a-name:ht")), false);
        assert_eq!(at(&head, "FRONTEND"), at(&known, "10.96.0.1:80/TCP"));
    }

    #[test]
    fn foreign_text_writes_only_plain_characters() {
        let mut decision = routed();
        decision.thread[..9].copy_from_slice(b"a\x1b[2J\nb\xffc");
        let line = Columns::new(0, 0).row(&row(&decision, Some("x/\u{202e}y")), false);
        assert!(line.contains(" a??2J?b?c[4711] ") && line.contains(" x/?y "), "{line}");
        assert_eq!(plain("Web Content-1 a.b:c/d@e+f_g"), "Web Content-1 a.b:c/d@e+f_g");
    }

    #[test]
    fn what_fails_is_red_unless_colours_are_off() {
        let refused = Decision { outcome: Outcome::Refused as u8, tier: NO_TIER, ..routed() };
        let refused = row(&refused, None);
        let mut columns = Columns::new(0, 0);
        assert!(columns.row(&refused, true).starts_with("\u{1b}[31m"));
        let plain = columns.row(&refused, false);
        assert!(plain.contains("  refused  ") && !plain.contains('\u{1b}'), "{plain}");
        assert!(!columns.row(&row(&routed(), None), true).contains('\u{1b}'));
    }
}
