//! The suites on a real cluster: kubelets, containerd and kube-proxy.
//!
//! Each module is a suite: `cargo xtask test` runs them one by one, in lanes.

mod bench_kube_proxy;
mod cluster_up;
mod daemon_set;
mod migration;
