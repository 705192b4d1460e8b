//! QEMU and kernels to boot.

use super::draft::Draft;

impl Draft<'_> {
    pub(super) fn virtual_machine(&mut self) {
        if !self.machine.virtual_machine {
            let what = "nothing to boot Debian's kernels with, or no way to get them: it takes \
                        an x86-64 machine with qemu-system-x86_64, and apt-get, dpkg-deb and debian-archive-keyring to \
                        download the kernels from Debian's archive, where they are not installed";
            self.missing(
                what.to_owned(),
                "sudo apt-get install qemu-system-x86   # or as this system does it",
            );
        }
        if !self.machine.xz {
            if self.machine.debian12 {
                self.packages_for(&["xz-utils"]);
            } else {
                let command = "sudo apt-get install xz-utils   # or as this system does it";
                self.missing("`xz`, which unpacks modules, is not installed".to_owned(), command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample::{bare, complete};
    use super::super::{Need, Plan, plan};
    use crate::machine::Machine;

    #[test]
    fn virtual_machines_come_from_debian_or_are_named() {
        let needs = BTreeSet::from([Need::VirtualMachine]);
        assert_eq!(plan(&complete(), &needs), Plan::default());
        let elsewhere = Machine { virtual_machine: false, debian12: false, xz: false, ..bare() };
        let found = plan(&elsewhere, &needs);
        assert_eq!(found.steps, []);
        let what: Vec<&str> = found.missing.iter().map(|it| it.what.as_str()).collect();
        assert!(what[0].contains("qemu-system-x86_64") && what[1].contains("`xz`"), "{what:?}");
    }
}
