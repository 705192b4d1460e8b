//! `topo-lb list hooks`: where programs are attached, and what the kernel has counted there.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Serialize, Serializer};
use topo_lb_common::counters::{Counters, sum};
use topo_lb_common::packets::{Outcome, Packets};
use topo_lb_common::totals::Totals;

use super::Connections;
use topo_lb_kernel::datapath::attach::walk;
use topo_lb_kernel::datapath::direction::{Direction, Role};
use topo_lb_kernel::datapath::hook::Hook;
use topo_lb_kernel::datapath::inspect::attached::{self, OnDevice};
use topo_lb_kernel::datapath::inspect::effective;
use topo_lb_kernel::datapath::inspect::overridden::Override;
use topo_lb_kernel::datapath::maps::error::ReadError;
use topo_lb_kernel::datapath::maps::{counters, packets, totals};
use topo_lb_kernel::datapath::pin::AttachMode;

/// All hooks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hooks {
    /// Each hook: those of sockets, of tc, and of XDP.
    pub each: Vec<HookRow>,
    /// Connections of all Services, at any hook.
    pub connections: Connections,
}

/// One hook.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookRow {
    /// For example `connect4` or `tc ingress`.
    pub hook: String,
    /// The kernel's id of the program at a socket hook.
    pub program: Option<u32>,
    /// Id of the cgroup that it is attached to: the inode number of its directory.
    pub cgroup: Option<u64>,
    /// Foreign programs that run before it and may decide first.
    pub overridden_by: Vec<Override>,
    /// The devices that programs of tc or XDP are attached to.
    pub devices: Vec<OnDevice>,
    /// What TCP connections moved, at `sock_ops`; none if that is not counted.
    pub moved: Option<Moved>,
    /// Packets of tc or XDP by outcome; none if the agent runs without tc.
    pub packets: Option<PacketRow>,
}

/// What TCP connections to all Services moved.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// Bytes that clients of this node sent.
    pub sent_bytes: u64,
    /// Bytes that they received.
    pub received_bytes: u64,
}

impl Moved {
    fn of<'a>(all: impl IntoIterator<Item = &'a Totals>) -> Self {
        let Totals { sent, received, .. } = sum(all);
        Self { sent_bytes: sent, received_bytes: received }
    }
}

/// Packets of a tc hook by outcome; in JSON an object with a key for each outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketRow(pub Packets);

impl PacketRow {
    /// The outcomes, `untouched` last.
    fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        let [untouched, others @ ..] = Outcome::ALL;
        others.into_iter().chain([untouched]).map(|outcome| (outcome, self.0.of(outcome)))
    }

    /// The outcomes of at least one packet, for people.
    fn text(self) -> String {
        let parts = self.outcomes().filter(|(_, count)| *count > 0).map(|(outcome, count)| {
            let name = if outcome == Outcome::Errors { "ICMP errors" } else { outcome.name() };
            format!("{count} {name}")
        });
        let text = parts.collect::<Vec<_>>().join(", ");
        if text.is_empty() { "no packets".to_owned() } else { text }
    }
}

impl Serialize for PacketRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.outcomes().map(|(outcome, count)| (outcome.name(), count)))
    }
}

pub(super) fn read(pin_dir: &Path) -> Result<Hooks, ReadError> {
    let mut hooks = Hook::ALL;
    hooks.sort_unstable();
    let mut each = Vec::new();
    let overrides = overrides(pin_dir)?;
    for hook in hooks {
        let place = attached::on_cgroup(pin_dir, hook)?;
        let by = overrides.iter().filter(|by| by.hook == hook).cloned();
        each.push(HookRow {
            hook: hook.name().to_owned(),
            program: place.map(|place| place.program),
            cgroup: place.map(|place| place.cgroup),
            overridden_by: by.collect(),
            ..HookRow::default()
        });
    }
    walk::run(pin_dir).map_err(|(path, error)| ReadError::Link(path, error))?;
    let place = attached::accounting(pin_dir)?;
    each.push(HookRow {
        hook: "sock_ops".to_owned(),
        program: place.map(|place| place.program),
        cgroup: place.map(|place| place.cgroup),
        moved: place.map(|_| totals::read(pin_dir)).transpose()?.map(|all| Moved::of(all.values())),
        ..HookRow::default()
    });
    let devices = attached::on_devices(pin_dir)?;
    let packets = packets::read(pin_dir)?;
    let counted = |hook: &str| Some(PacketRow(packets.iter().find(|(of, _)| *of == hook)?.1));
    let is_at = |on: &&OnDevice, direction| on.direction == direction && on.mode != AttachMode::Xdp;
    for direction in [Direction::Ingress, Direction::Egress] {
        each.push(HookRow {
            hook: format!("tc {direction}"),
            devices: devices.iter().filter(|on| is_at(on, direction)).cloned().collect(),
            packets: counted(direction.into()),
            ..HookRow::default()
        });
    }
    let on_drivers = devices.iter().filter(|on| on.mode == AttachMode::Xdp).cloned();
    each.push(HookRow {
        hook: "xdp".to_owned(),
        devices: on_drivers.collect(),
        packets: counted("xdp"),
        ..HookRow::default()
    });
    let connections: Counters = sum(counters::connections(pin_dir)?.values());
    Ok(Hooks { each, connections: connections.into() })
}

/// The programs that run before ours, in the cgroups where ours are attached.
fn overrides(pin_dir: &Path) -> Result<Vec<Override>, ReadError> {
    let mut all = Vec::new();
    let mut cgroups = BTreeSet::new();
    for hook in Hook::ALL {
        cgroups.extend(attached::on_cgroup(pin_dir, hook)?.map(|place| place.cgroup));
    }
    for root in cgroups.into_iter().filter_map(effective::path_of) {
        let looked = effective::look(&root, pin_dir, &[]);
        all.extend(looked.map_err(|error| ReadError::Link(root, error))?);
    }
    Ok(all)
}

impl Hooks {
    /// The rows as a table for people, and the sum below.
    pub(super) fn table(&self) -> String {
        let mut table = super::table(&["HOOK", "ATTACHED TO", "PROGRAM", "COUNTED"]);
        for row in &self.each {
            let (place, programs) = match row.cgroup {
                Some(cgroup) => (format!("cgroup {cgroup}"), row.program.into_iter().collect()),
                None => devices(&row.devices),
            };
            table.add_row([
                row.hook.clone(),
                place,
                list(programs.iter().map(u32::to_string)),
                row.counted(),
            ]);
        }
        let by: Vec<_> = self.each.iter().flat_map(HookRow::warnings).collect();
        let Connections { node, zone, region, elsewhere, refused } = &self.connections;
        format!(
            "{}\n{}\nConnections to Services, by all hooks: {node} to this node, {zone} in the zone, \
             {region} in the region, {elsewhere} elsewhere, {refused} refused.",
            table.trim_fmt(),
            by.concat()
        )
    }
}

impl HookRow {
    /// What the kernel has counted, for people.
    fn counted(&self) -> String {
        match (self.packets, self.moved) {
            (Some(packets), _) => packets.text(),
            (None, Some(Moved { sent_bytes, received_bytes })) => {
                format!("{sent_bytes} bytes sent, {received_bytes} received by TCP")
            }
            (None, None) => "-".to_owned(),
        }
    }

    /// A line for each foreign program that runs before this one.
    fn warnings(&self) -> impl Iterator<Item = String> {
        self.overridden_by.iter().map(|by| {
            let name = by.name.as_deref().unwrap_or("its name takes CAP_SYS_ADMIN");
            let (hook, cgroup) = (&self.hook, by.cgroup.display());
            let above = by.above.as_ref().map(|above| format!(" on {}", above.display()));
            let above = above.unwrap_or_default();
            format!(
                "\nprogram {} ({name}){above} runs before {hook} in {cgroup}, and may decide first",
                by.program
            )
        })
    }
}

/// The devices of a tc hook, and their programs, each once.
fn devices(rows: &[OnDevice]) -> (String, Vec<u32>) {
    let names = rows.iter().map(|row| {
        let means = if row.mode == AttachMode::Clsact { " by clsact" } else { "" };
        let clients = if row.role == Role::Guest { "" } else { " for clients outside" };
        let beside = match row.others.as_slice() {
            [] => String::new(),
            others => format!(" beside {}", others.join(" and ")),
        };
        match &row.name {
            Some(name) => format!("{name}{clients}{means}{beside}"),
            None => format!("device {}{clients}{means}{beside}", row.index),
        }
    });
    let mut programs: Vec<u32> = rows.iter().map(|row| row.program).collect();
    programs.sort_unstable();
    programs.dedup();
    (list(names), programs)
}

fn list(parts: impl Iterator<Item = String>) -> String {
    let text = parts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_has_a_row_in_aligned_columns() {
        let device = |name: Option<&str>, role, mode| OnDevice {
            index: 7,
            name: name.map(str::to_owned),
            direction: Direction::Ingress,
            role,
            mode,
            program: 41,
            others: if mode == AttachMode::Tcx {
                vec!["bpf to_pod".to_owned()]
            } else {
                Vec::new()
            },
        };
        let hooks = Hooks {
            each: vec![
                HookRow {
                    hook: "connect4".to_owned(),
                    program: Some(9),
                    cgroup: Some(1234),
                    ..HookRow::default()
                },
                HookRow { hook: "connect6".to_owned(), ..HookRow::default() },
                HookRow {
                    hook: "sock_ops".to_owned(),
                    moved: Some(Moved { sent_bytes: 100, received_bytes: 2_000 }),
                    ..HookRow::default()
                },
                HookRow {
                    hook: "tc ingress".to_owned(),
                    devices: vec![
                        device(Some("tap0"), Role::Guest, AttachMode::Tcx),
                        device(None, Role::External, AttachMode::Clsact),
                    ],
                    packets: Some(PacketRow(Packets {
                        translated: 12,
                        opened: 3,
                        ..Packets::default()
                    })),
                    ..HookRow::default()
                },
                HookRow {
                    hook: "tc egress".to_owned(),
                    packets: Some(PacketRow::default()),
                    ..HookRow::default()
                },
            ],
            connections: Counters { same_node: 2, refused: 1, ..Counters::default() }.into(),
        };
        let wanted = "\
HOOK        ATTACHED TO                                                     PROGRAM  COUNTED
connect4    cgroup 1234                                                     9        -
connect6    -                                                               -        -
sock_ops    -                                                               -        100 bytes sent, 2000 received by TCP
tc ingress  tap0 beside bpf to_pod, device 7 for clients outside by clsact  41       12 translated, 3 opened
tc egress   -                                                               -        no packets

Connections to Services, by all hooks: 2 to this node, 0 in the zone, 0 in the region, 0 elsewhere, 1 refused.";
        let table = hooks.table();
        let lines: Vec<&str> = table.lines().map(|line| line.trim()).collect();
        assert_eq!(lines.join("\n"), wanted);
    }
}
