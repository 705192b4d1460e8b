//! Which foreign programs run before ours. Pure.
//!
//! The kernel runs all programs of a hook one after the other. A program that runs before ours may
//! replace the ClusterIP with an address that ours does not know. It may also be harmless, like a
//! firewall: the agent cannot tell the difference.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::in_front::{InFront, first_of};
use crate::datapath::hook::Hook;
use topo_lb_core::flag::{CGROUP_ROOT, TOLERATE_PROGRAMS};

/// A foreign program that runs before ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Override {
    /// The hook.
    #[serde(skip)]
    pub hook: Hook,
    /// The cgroup in which it runs before ours, as in those below.
    pub cgroup: PathBuf,
    /// The cgroup above that the program is attached to; `None` if that is `cgroup` itself or
    /// unknown. Such a program runs before ours only by `BPF_F_PREORDER`.
    pub above: Option<PathBuf>,
    /// The kernel's id of the program.
    pub program: u32,
    /// The first 15 bytes of its name; the kernel shows it only with CAP_SYS_ADMIN.
    pub name: Option<String>,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} ", self.program)?;
        if let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) {
            write!(f, "({name}) ")?;
        }
        if let Some(above) = &self.above {
            write!(f, "on {} ", above.display())?;
        }
        write!(f, "runs before topo-lb's {} in {}", self.hook.name(), self.cgroup.display())
    }
}

/// The foreign programs at all hooks and cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precedence {
    /// Programs that run before ours; not all if they are many.
    pub overrides: Vec<Override>,
    /// Cgroups that the next rounds still have to query.
    pub unasked: usize,
    /// Programs in front of ours on devices of clients outside.
    pub in_front: Vec<InFront>,
}

/// The programs of a hook in one cgroup that run before ours, in order. Empty if ours does not run:
/// a detached program is reported elsewhere.
#[must_use]
pub fn before(effective: &[u32], ours: Option<u32>) -> &[u32] {
    let place = effective.iter().position(|program| Some(*program) == ours);
    &effective[..place.unwrap_or_default()]
}

/// Those of `before` that the cgroup above does not have: its programs run below it, too.
#[must_use]
pub fn own(before: &[u32], inherited: &[u32]) -> Vec<u32> {
    before.iter().copied().filter(|program| !inherited.contains(program)).collect()
}

/// Number of our hooks that are overridden in some cgroup.
#[must_use]
pub fn hooks(overrides: &[Override]) -> usize {
    overrides.iter().map(|one| one.hook).collect::<BTreeSet<_>>().len()
}

/// One sentence about all overrides; `None` if there are none.
#[must_use]
pub fn sentence(overrides: &[Override]) -> Option<String> {
    let all = first_of(overrides)?;
    Some(format!("{all}: it may decide first where connections to Services go"))
}

/// What to do about programs that run before those of an agent on `root`.
#[must_use]
pub fn remedy(root: &Path, overrides: &[Override]) -> String {
    // The program on the topmost cgroup runs before all others.
    let above = overrides.iter().filter_map(|one| one.above.as_ref());
    let before = match above.min_by_key(|path| path.components().count()) {
        // By BPF_F_BEFORE (Linux 6.17), ours overtakes programs of its own cgroup only.
        Some(above) => format!(
            "give {CGROUP_ROOT} {}, where the program is attached (before Linux 6.17: a cgroup above \
             that); restarting the agent alone does not help",
            above.display()
        ),
        None => format!(
            "restart the agent where the kernel orders programs (Linux 6.17), or give {CGROUP_ROOT} a \
             cgroup below {}",
            root.display()
        ),
    };
    format!(
        "switch the other load balancer off for sockets, or attach topo-lb before it: {before}; if the \
         program only filters, name it with {TOLERATE_PROGRAMS}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Option<u32> = Some(7);

    #[test]
    fn only_programs_that_run_before_ours_override() {
        for (effective, ours, wanted) in [
            (&[][..], OURS, &[][..]),
            (&[7], OURS, &[]),
            (&[7, 1, 2], OURS, &[]),
            (&[1, 7], OURS, &[1]),
            (&[2, 1, 7, 3], OURS, &[2, 1]),
            // Ours does not run.
            (&[1, 2], OURS, &[]),
            (&[1, 2], None, &[]),
        ] {
            assert_eq!(before(effective, ours), wanted, "{effective:?}");
        }
    }

    #[test]
    fn a_program_is_told_where_it_is_attached_and_not_below() {
        assert_eq!(own(&[1, 2], &[]), [1, 2]);
        assert_eq!(own(&[1, 2], &[1, 2]), [0; 0]);
        assert_eq!(own(&[3, 1, 2], &[1, 2]), [3]);
        // A program that is gone above does not hide another one.
        assert_eq!(own(&[2], &[1]), [2]);
    }

    fn one(hook: Hook, cgroup: &str, program: u32, name: Option<&str>) -> Override {
        let name = name.map(str::to_owned);
        Override { hook, cgroup: cgroup.into(), above: None, program, name }
    }

    #[test]
    fn hooks_are_counted_once_each() {
        assert_eq!(hooks(&[]), 0);
        let all = [
            one(Hook::Connect4, "/a", 1, None),
            one(Hook::Connect4, "/b", 2, None),
            one(Hook::Sendmsg6, "/a", 3, None),
        ];
        assert_eq!(hooks(&all), 2);
    }

    #[test]
    fn a_sentence_names_the_program_the_hook_and_the_cgroup() {
        assert_eq!(sentence(&[]), None);
        let connect = one(Hook::Connect4, "/sys/fs/cgroup", 42, Some("cil_sock4_conne"));
        assert_eq!(
            sentence(std::slice::from_ref(&connect)).unwrap(),
            "program 42 (cil_sock4_conne) runs before topo-lb's connect4 in /sys/fs/cgroup: it may \
             decide first where connections to Services go"
        );
        let nameless = one(Hook::Connect6, "/sys/fs/cgroup", 43, None);
        let text = sentence(&[nameless, connect.clone()]).unwrap();
        assert!(text.starts_with("program 43 runs before topo-lb's connect6 in "), "{text}");
        assert!(text.contains(" (and 1 more like that): "), "{text}");
        let many = sentence(&vec![connect; 9]).unwrap();
        assert!(many.contains(" (and 8 more like that): "), "{many}");
    }

    #[test]
    fn a_program_on_a_cgroup_above_is_told_with_that_cgroup() {
        let root = Path::new("/sys/fs/cgroup/node/kubepods");
        let here = one(Hook::Connect4, "/sys/fs/cgroup/node/kubepods", 41, None);
        let on = |above: &str| Override { above: Some(above.into()), ..here.clone() };
        let (near, far) = (on("/sys/fs/cgroup/node"), on("/sys/fs/cgroup"));
        assert_eq!(
            near.to_string(),
            "program 41 on /sys/fs/cgroup/node runs before topo-lb's connect4 in \
             /sys/fs/cgroup/node/kubepods"
        );
        let text = remedy(root, std::slice::from_ref(&near));
        assert!(text.contains("give --cgroup-root /sys/fs/cgroup/node, "), "{text}");
        assert!(text.contains("restarting the agent alone does not help"), "{text}");
        assert!(!text.contains("below"), "{text}");
        let text = remedy(root, &[here.clone(), near, far]);
        assert!(text.contains("give --cgroup-root /sys/fs/cgroup, "), "{text}");
        let text = remedy(root, &[here]);
        assert!(text.contains("a cgroup below /sys/fs/cgroup/node/kubepods"), "{text}");
    }
}
