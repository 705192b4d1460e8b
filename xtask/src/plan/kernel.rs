//! What the kernel provides: bpffs for pins, cgroup2 for programs, and root's right to use them.

use super::draft::Draft;
use super::step::Step;
use crate::mounts::{BPFFS, CGROUPS, Cgroup2};

impl Draft<'_> {
    pub(super) fn kernel(&mut self) {
        if !self.machine.mounts.bpffs {
            let command = ["mount", "-t", "bpf", "bpf", BPFFS];
            self.mount("bpffs, where pins go", "mount-bpffs", &command);
        }
        match self.machine.mounts.cgroup2 {
            Cgroup2::At(_) => {}
            Cgroup2::Free => {
                let command = ["mount", "-t", "cgroup2", "none", CGROUPS];
                self.mount("cgroup2, where programs are attached", "mount-cgroup2", &command);
            }
            // A mount of version 2 over hierarchies of version 1 would hide them.
            Cgroup2::Version1 => self.missing(
                format!(
                    "this host has only cgroups of version 1 in {CGROUPS}, and programs are \
                     attached to version 2 (which can be mounted beside them, or booted with \
                     systemd.unified_cgroup_hierarchy=1)"
                ),
                &format!(
                    "sudo sh -c 'mkdir -p {CGROUPS}/unified && mount -t cgroup2 none {CGROUPS}/unified'"
                ),
            ),
        }
    }

    fn mount(&mut self, title: &str, log: &'static str, command: &[&str]) {
        let place = command.last().copied().unwrap_or_default();
        if self.machine.root {
            self.plan.steps.push(Step::new(format!("{title}, mounted on {place}"), log, command));
        } else {
            let what = format!("{title}, is not mounted on {place}");
            self.missing(what, &format!("sudo {}", command.join(" ")));
        }
    }

    pub(super) fn root(&mut self) {
        if !self.machine.root {
            let what = "this makes namespaces, eBPF programs or images, which only root may do";
            let invocation = &self.machine.invocation;
            let command = format!("sudo env PATH=\"$PATH\" HOME=\"$HOME\" {invocation}");
            self.missing(what.to_owned(), &command);
        }
    }
}
