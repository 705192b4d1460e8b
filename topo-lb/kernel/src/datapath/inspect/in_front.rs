//! Foreign programs that see the packets of clients outside before ours do, on ingress or egress of
//! an uplink. They may send packets on, past ours. The agent cannot tell a firewall from those.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use aya::programs::SchedClassifier;

use super::attached::{OnDevice, on_devices};
use super::tolerated::{Tolerated, is_tolerated};
use crate::datapath::attach::clsact::{is_foreign, priority};
use crate::datapath::attach::filters;
use crate::datapath::direction::{Direction, Role};
use crate::datapath::host::syscall;
use crate::datapath::pin::AttachMode;
use crate::device::link::links;
use crate::netlink::Netlink;
use topo_lb_core::flag::TOLERATE_PROGRAMS;

/// A foreign program in front of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFront {
    /// What it is: `program` and its id, or a filter.
    program: String,
    /// The name of the device.
    device: String,
    /// Where it runs.
    layer: Layer,
}

/// Where a program sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Xdp,
    Tc(Direction),
}

impl fmt::Display for InFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, device, layer } = self;
        match layer {
            Layer::Xdp => write!(f, "{program} at XDP of {device} runs before topo-lb's"),
            Layer::Tc(direction) => {
                write!(f, "{program} runs before topo-lb's at tc {direction} of {device}")
            }
        }
    }
}

/// One sentence about all of them; `None` if there are none.
#[must_use]
pub fn sentence(all: &[InFront]) -> Option<String> {
    Some(format!("{}: it may decide first where packets of clients outside go", first_of(all)?))
}

/// The first one, and how many there are besides; `None` if there are none.
pub(super) fn first_of<T: fmt::Display>(all: &[T]) -> Option<String> {
    let first = all.first()?;
    Some(match all.len() - 1 {
        0 => first.to_string(),
        more => format!("{first} (and {more} more like that)"),
    })
}

/// What to do about them.
#[must_use]
pub fn remedy() -> String {
    format!("detach it, or, if it only filters or counts, name it with {TOLERATE_PROGRAMS}")
}

/// The foreign programs in front of ours on uplinks, without those that the user declared harmless.
///
/// # Errors
/// The kernel does not list pins or devices.
pub fn look(pin_dir: &Path, tolerated: &[Tolerated]) -> io::Result<Vec<InFront>> {
    let ours = on_devices(pin_dir).map_err(io::Error::other)?;
    let external = ours.into_iter().filter(|on| on.role == Role::External);
    let (xdp, ours): (Vec<_>, Vec<_>) = external.partition(|on| on.mode == AttachMode::Xdp);
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    let ingress = |on: &&OnDevice| on.direction == Direction::Ingress && on.name.is_some();
    for link in links()? {
        let is_ours = ours.iter().filter(ingress).any(|on| on.index == link.device.index);
        let is_foreign = |id: &u32| xdp.iter().all(|on| on.program != *id);
        if let Some(id) = link.xdp.filter(|id| is_ours && is_foreign(id)) {
            all.extend(program(id, tolerated).map(|it| (it, link.device.name, Layer::Xdp)));
        }
    }
    let netlink = Netlink::open(None)?;
    for on in ours {
        let Some(device) = &on.name else { continue };
        let layer = Layer::Tc(on.direction);
        let found = tcx(device, &on).into_iter().filter_map(|id| program(id, tolerated));
        let found = found.chain(clsact(&netlink, &on, tolerated));
        all.extend(found.map(|program| (program, device.clone(), layer)));
    }
    let in_front = |(program, device, layer)| InFront { program, device, layer };
    Ok(all.into_iter().map(in_front).collect())
}

/// Ids of the tcx programs before ours. All of them run before the filters of clsact
/// (`sch_handle_ingress`, net/core/dev.c).
fn tcx(device: &str, ours: &OnDevice) -> Vec<u32> {
    let programs = SchedClassifier::query_tcx(device, ours.direction.attach_type());
    let programs = programs.map(|(_, programs)| programs).unwrap_or_default();
    programs.iter().map(|info| info.id()).take_while(|id| *id != ours.program).collect()
}

/// The filters of clsact before ours. With the same priority, the one that was there first runs first:
/// the kernel does not tell which.
fn clsact(netlink: &Netlink, ours: &OnDevice, tolerated: &[Tolerated]) -> Vec<String> {
    if ours.mode == AttachMode::Tcx {
        return Vec::new();
    }
    let filters = filters::of(netlink, ours.index, ours.direction).unwrap_or_default();
    let in_front = filters.into_iter().filter(|filter| {
        let name = filter.name.strip_prefix("bpf ").unwrap_or(&filter.name);
        is_foreign(filter, ours.direction)
            && filter.priority <= priority(ours.direction)
            && !is_tolerated(tolerated, 0, Some(name))
    });
    in_front.map(|filter| format!("the filter {}", filter.name)).collect()
}

/// What a program is called; `None` if it is tolerated. The kernel tells the name only to a process
/// with CAP_SYS_ADMIN.
fn program(id: u32, tolerated: &[Tolerated]) -> Option<String> {
    let head = syscall::program_by_id(id).and_then(|one| syscall::program_head(one.as_fd()));
    let name = head.ok().map(|head| head.name).filter(|name| !name.is_empty());
    if is_tolerated(tolerated, id, name.as_deref()) {
        return None;
    }
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    Some(format!("program {id}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_the_first_and_counts_the_others() {
        let xdp = InFront {
            program: "program 7 (wall)".to_owned(),
            device: "eth0".to_owned(),
            layer: Layer::Xdp,
        };
        let layer = Layer::Tc(Direction::Ingress);
        let tc = InFront { layer, ..xdp.clone() };
        assert_eq!(sentence(&[]), None);
        let told = sentence(&[xdp, tc.clone()]).expect("a sentence");
        assert!(
            told.starts_with("program 7 (wall) at XDP of eth0 runs before topo-lb's (and 1 more")
        );
        let told = sentence(&[tc]).expect("a sentence");
        assert!(
            told.contains("before topo-lb's at tc ingress of eth0: it may decide first"),
            "{told}"
        );
    }
}
