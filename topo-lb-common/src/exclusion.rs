//! `excluded` and `exclusion`: the cgroups of Pods whose connections are treated in another way, and their levels in
//! the hierarchy.

/// The one entry of `exclusion`: the levels of the cgroup hierarchy that have cgroups of such Pods. The root has
/// level 0. A writer replaces the entry by one store.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Levels {
    /// The first level to check.
    pub first: u32,
    /// Number of levels from there on, at most [`MOST_LEVELS`]; zero: there is no such Pod.
    pub count: u32,
}

/// Most levels that a program checks.
pub const MOST_LEVELS: u32 = 16;

/// How connections of a Pod are treated.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Treatment {
    /// They stay untouched.
    Excluded = 0,
    /// Those to a far endpoint of a Service with `topo-lb.io/direct: steer` go to a near one.
    Steered = 1,
}

/// Key of `excluded`: the cgroup of such a Pod. Those of its containers are below it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ExcludedKey {
    /// The cgroup's id: the inode number of its directory.
    pub cgroup: u64,
}

/// Value of `excluded`.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Excluded {
    /// The level of the cgroup; programs do not read it.
    pub level: u16,
    /// A [`Treatment`].
    pub treatment: u8,
    /// Zero.
    pub reserved: u8,
}

impl Excluded {
    /// A cgroup of this level.
    #[must_use]
    pub const fn new(level: u32, treatment: Treatment) -> Self {
        Self { level: level as u16, treatment: treatment as u8, reserved: 0 }
    }

    /// How connections are treated.
    #[inline(always)]
    #[must_use]
    pub const fn treatment(&self) -> Treatment {
        if self.treatment == Treatment::Steered as u8 {
            Treatment::Steered
        } else {
            Treatment::Excluded
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_treatment_is_kept() {
        for treatment in [Treatment::Excluded, Treatment::Steered] {
            let kept = Excluded::new(3, treatment);
            assert_eq!((kept.level, kept.treatment()), (3, treatment));
        }
    }
}
