//! Errors of loading, attaching and removing the datapath.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::host::capability;
use super::host::feature::{Feature, kernel_release};
use super::host::lock::LockError;
use super::host::mount::MountError;

/// Why the datapath cannot be loaded. Nothing new stays in the kernel.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file system is not mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The pin directory cannot be created.
    #[error("the pin directory {} cannot be made: {}", .0.display(), .1)]
    PinDirectory(PathBuf, #[source] io::Error),
    /// Another agent uses the pin directory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The process lacks capabilities.
    #[error(
        "loading eBPF programs takes {}, which this process does not have: run it as root, or give \
         it these capabilities (CAP_SYS_ADMIN and CAP_NET_ADMIN before Linux 5.8)", .0.join(" and ")
    )]
    Capabilities(Vec<&'static str>),
    /// The kernel refuses despite these capabilities.
    #[error(
        "the kernel does not let this process load eBPF programs ({}): {}",
        if capability::in_user_namespace() {
            "it runs in a user namespace, where no capability is enough"
        } else {
            "look for a seccomp profile that allows bpf(2) only with CAP_SYS_ADMIN, kernel lockdown, \
             a security module, or RLIMIT_MEMLOCK before Linux 5.11"
        },
        .0
    )]
    NotPermitted(#[source] io::Error),
    /// The kernel lacks features that the programs need.
    #[error("this kernel ({}) is too old: {}", kernel_release(), list(.0))]
    KernelTooOld(Vec<Feature>),
    /// A newer topo-lb made the pins.
    #[error(
        "the maps in {} were made by a newer topo-lb (layout {found}; this one knows {own}), and \
         are left alone: run that version again, or `topo-lb cleanup` for connections to Services \
         to be untouched until this version has started", path.display()
    )]
    Newer {
        /// The pin directory.
        path: PathBuf,
        /// Layout of the pins.
        found: u32,
        /// Layout of this version.
        own: u32,
    },
    /// A map cannot be created, or a pinned one cannot be opened.
    #[error("the map {name} cannot be made or opened: {reason}")]
    Map {
        /// The map.
        name: String,
        /// Why.
        reason: String,
    },
    /// The verifier refuses a program.
    #[error(
        "this kernel ({}) refuses the program {program}: {reason} (more at log level debug)",
        kernel_release()
    )]
    Verifier {
        /// The program.
        program: &'static str,
        /// The kernel's answer, and the last line of the verifier's log.
        reason: String,
    },
    /// The object inside this binary is damaged or was built for another version.
    #[error("the eBPF object inside this binary cannot be used: {0}")]
    Object(String),
}

fn list(features: &[Feature]) -> String {
    let each =
        features.iter().map(|feature| format!("it lacks {feature} (Linux {})", feature.since));
    each.collect::<Vec<_>>().join(", ")
}

/// Why the programs are not attached. Earlier programs stay attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The cgroup root cannot be opened.
    #[error("the cgroup root {} cannot be opened: {}", .0.display(), .1)]
    CgroupRoot(PathBuf, #[source] io::Error),
    /// A pinned link cannot be read or replaced.
    #[error("the pinned link {} cannot be used: {}", .0.display(), .1)]
    Link(PathBuf, #[source] io::Error),
    /// Another program has the hook exclusively.
    #[error(
        "{hook} of {} is held by another program that allows no second one: `bpftool cgroup tree` \
         shows it", cgroup.display()
    )]
    Exclusive {
        /// The hook's name.
        hook: &'static str,
        /// The cgroup root.
        cgroup: PathBuf,
    },
    /// The kernel does not attach a program.
    #[error("{hook} cannot be attached to {}: {reason}", cgroup.display())]
    Refused {
        /// The hook's name.
        hook: &'static str,
        /// The cgroup root.
        cgroup: PathBuf,
        /// The kernel's answer.
        reason: String,
    },
    /// A link cannot be pinned.
    #[error("the link of {hook} cannot be pinned: {reason}")]
    Pin {
        /// The hook's name.
        hook: &'static str,
        /// Why.
        reason: String,
    },
    /// The object has no such program.
    #[error(transparent)]
    Object(#[from] LoadError),
}

/// Why not everything could be removed.
#[derive(Debug, Error)]
pub enum CleanupError {
    /// An agent runs on the pin directory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kernel does not remove the masquerade table.
    #[error("the nftables table inet topo-lb cannot be removed: {0}")]
    Masquerade(#[source] io::Error),
    /// A file or directory cannot be removed.
    #[error("{} cannot be removed: {}", .0.display(), .1)]
    Remove(PathBuf, #[source] io::Error),
}

/// An error and its causes, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}
