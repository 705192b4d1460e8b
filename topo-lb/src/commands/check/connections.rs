//! How many connections of guests and clients outside there is room for, and how many there are.

use std::path::Path;

use super::Finding;
use topo_lb_kernel::datapath::host::connection_room::Host;
use topo_lb_kernel::datapath::maps::share;
use topo_lb_kernel::datapath::maps::usage::{self, TableUse};

/// Looks at this node, at the limit on this process's memory, and at the tables of an agent that runs on
/// `pin_dir`.
pub(super) fn finding(pin_dir: &Path) -> Finding {
    // What cannot be read is another check's.
    let tables = usage::read(pin_dir).ok().flatten();
    let used_up = tables.and_then(|it| share::used_up(pin_dir, &it, false).ok().flatten());
    of(&Host::this(), tables, used_up)
}

fn of(host: &Host, tables: Option<[TableUse; 2]>, used_up: Option<String>) -> Finding {
    const NAME: &str = "connections";
    let full = tables.and_then(|tables| usage::full(&tables, false));
    if let Some(sentence) = full.or(used_up) {
        return Finding::limited(NAME, sentence).advised(
            "start the agent with a larger --max-connections; `topo-lb list connections` says whose they are",
        );
    }
    let limit = host.shortage(host.connections()).or_else(|| host.reduced());
    if let Some((sentence, remedy)) = limit {
        return Finding::limited(NAME, sentence).advised(&remedy);
    }
    let mut sentence = host.sentence();
    for (family, table) in ["IPv4", "IPv6"].into_iter().zip(tables.into_iter().flatten()) {
        sentence += &format!("; {family}: {} of {} are open", table.open, table.room);
    }
    Finding::ok(NAME, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Status;

    #[test]
    fn what_there_is_room_for_and_what_is_full() {
        let host = Host { cpus: 2, memory: 4 << 30, limit: None, percent: 100 };
        let said = of(&host, None, None);
        assert_eq!(
            (said.status, &*said.sentence),
            (
                Status::Ok,
                "2 CPUs and 4096 MiB of memory: with --tc-devices or --kube-proxy-replacement there is \
                 room for 131072 open ones of each address family, unless --max-connections says otherwise; \
                 tables take 28 MiB, and full ones 196 MiB"
            )
        );
        let table = |open| TableUse { open, half_open: 0, room: 160 };
        let said = of(&host, Some([table(3), table(159)]), None);
        assert!(
            said.sentence.ends_with("; IPv4: 3 of 160 are open; IPv6: 159 of 160 are open"),
            "{said:?}"
        );
        let said = of(&host, Some([table(3), table(160)]), None);
        assert_eq!(said.status, Status::Limited);
        assert!(said.sentence.contains("is full: 160 of 160 are open"), "{said:?}");
        assert!(said.remedy.is_some_and(|text| text.contains("--max-connections")));

        let limited = |limit| of(&Host { limit: Some(limit), ..host }, None, None);
        for (limit, wanted) in
            [(512 << 20, "leaves no more"), (160 << 20, "the kernel would kill the agent")]
        {
            let said = limited(limit);
            assert_eq!(said.status, Status::Limited);
            assert!(said.sentence.ends_with(wanted) && said.remedy.is_some(), "{said:?}");
        }
        assert_eq!(limited(1 << 30).status, Status::Ok);
    }

    #[test]
    fn a_full_table_is_said_before_a_quarter_that_is_used_up() {
        let host = Host { cpus: 2, memory: 4 << 30, limit: None, percent: 100 };
        for (open, begin) in [(40, "a client has"), (160, "the table of connections")] {
            let quarter = Some("a client has its quarter".to_owned());
            let six = TableUse { open, half_open: 0, room: 160 };
            let said = of(&host, Some([TableUse { open: 0, ..six }, six]), quarter);
            assert_eq!(said.status, Status::Limited);
            assert!(said.sentence.starts_with(begin) && said.remedy.is_some(), "{said:?}");
        }
    }
}
