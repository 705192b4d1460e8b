//! What commands need of the machine.

/// What a command needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// A compiler and a linker for the eBPF object.
    Object,
    /// Clippy for the eBPF object.
    ObjectLints,
    /// rustfmt and Clippy for everything else.
    HostLints,
    /// cargo-deny.
    Deny,
    /// bpffs and cgroup2.
    Kernel,
    /// The programs that the lab calls.
    Lab,
    /// nftables, beside which the bench measures.
    Peers,
    /// kube-proxy 1.20 and iptables, beside which it measures too.
    KubeProxy,
    /// To be root, for the lab.
    Root,
    /// etcd, kube-apiserver and kube-controller-manager.
    ControlPlane,
    /// kubectl and Helm.
    ClusterTools,
    /// buildah.
    Image,
    /// Kernels, and QEMU to boot them.
    VirtualMachine,
}
