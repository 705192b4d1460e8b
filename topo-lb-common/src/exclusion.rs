//! `excluded` and `exclusion`: Pods whose processes are left alone, and where their cgroups are.

/// The one entry of `exclusion`: the levels of the cgroup hierarchy on which the cgroups of excluded
/// Pods are. The root has level 0. A writer replaces all of it by one store.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Levels {
    /// The first level to look at.
    pub first: u32,
    /// How many from there on; zero: no Pod is excluded. At most [`MOST_LEVELS`].
    pub count: u32,
}

/// Levels that a program looks at.
pub const MOST_LEVELS: u32 = 16;

/// Key of `excluded`: the cgroup of an excluded Pod, which the cgroups of its containers are below.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ExcludedKey {
    /// The cgroup's id: the inode number of its directory.
    pub cgroup: u64,
}

/// Value of `excluded`: that the key is there is all that counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Excluded {
    /// The level of the cgroup.
    pub level: u32,
}
