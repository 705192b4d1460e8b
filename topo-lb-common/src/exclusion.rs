//! `excluded` and `exclusion`: the cgroups of excluded Pods, and their levels in the hierarchy.

/// The one entry of `exclusion`: the levels of the cgroup hierarchy that have cgroups of excluded
/// Pods. The root has level 0. A writer replaces the entry by one store.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Levels {
    /// The first level to check.
    pub first: u32,
    /// Number of levels from there on, at most [`MOST_LEVELS`]; zero: no Pod is excluded.
    pub count: u32,
}

/// Most levels that a program checks.
pub const MOST_LEVELS: u32 = 16;

/// Key of `excluded`: the cgroup of an excluded Pod. Those of its containers are below it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ExcludedKey {
    /// The cgroup's id: the inode number of its directory.
    pub cgroup: u64,
}

/// Value of `excluded`; programs only check whether the key exists.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Excluded {
    /// The level of the cgroup.
    pub level: u32,
}
