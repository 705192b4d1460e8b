//! kube-proxy 1.20 to measure beside, and what it calls.

use super::draft::Draft;

impl Draft<'_> {
    pub(super) fn kube_proxy(&mut self) {
        self.program("iptables", "iptables", self.machine.iptables);
        if self.machine.kube_proxy {
            return;
        }
        let what = "no kube-proxy 1.20 to measure beside: it comes from Debian's archive where \
                    apt-get, dpkg-source and debian-archive-keyring are installed, or is named by \
                    TOPO_LB_KUBE_PROXY; `--quick` does without";
        self.debian_source(what, "TOPO_LB_KUBE_PROXY=PATH cargo xtask bench");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample::bare;
    use super::super::{Need, Plan, plan};
    use crate::machine::Machine;

    #[test]
    fn kube_proxy_comes_from_debian_or_from_the_environment() {
        let needs = BTreeSet::from([Need::KubeProxy]);
        let there = Machine { kube_proxy: true, iptables: true, debian12: false, ..bare() };
        assert_eq!(plan(&there, &needs), Plan::default());
        let obtainable = Machine { debian_sources: true, kube_proxy: false, ..there.clone() };
        assert_eq!(plan(&obtainable, &needs), Plan::default());
        let steps = plan(&bare(), &needs).steps;
        assert!(steps[1].display().ends_with("iptables dpkg-dev"), "{steps:?}");
        let elsewhere = plan(&Machine { kube_proxy: false, ..there }, &needs);
        assert_eq!(elsewhere.steps, []);
        assert!(elsewhere.missing[0].what.contains("TOPO_LB_KUBE_PROXY"), "{elsewhere:?}");
    }
}
