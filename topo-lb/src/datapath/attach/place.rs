//! The order of our program among others at the same hook.
//!
//! The kernel runs all programs of a hook one after the other: those of a cgroup in the order of
//! attaching, then those of its parent. Each sees the address that the programs before it left. The
//! program that sees the ClusterIP first decides, so `connect` and `sendmsg` must be first. `recvmsg` and
//! `getpeername` undo the translation, so they must run last, which is the order without any flag.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::datapath::hook::Hook;
use crate::datapath::host::feature;
use crate::datapath::host::syscall::{self, BPF_F_BEFORE, BPF_F_PREORDER};

/// A place at a hook that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before all others, as far as the kernel can do that.
    First,
    /// Among those that run first, behind those that are there.
    Behind,
}

impl Place {
    /// What to try, from the best to what every kernel takes. A kernel that does not know a flag
    /// answers EINVAL.
    const fn flags(self, hook: Hook) -> &'static [u32] {
        match self {
            _ if !hook.decides() => &[0],
            // `BPF_F_PREORDER` came before `BPF_F_BEFORE` for cgroups.
            Self::First => &[BPF_F_PREORDER | BPF_F_BEFORE, BPF_F_PREORDER, 0],
            Self::Behind => &[BPF_F_PREORDER, 0],
        }
    }
}

/// Attaches `program` to `cgroup`. No other program is detached.
pub(crate) fn attach(
    hook: Hook,
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    place: Place,
) -> io::Result<OwnedFd> {
    let mut result = Err(io::ErrorKind::InvalidInput.into());
    for flags in place.flags(hook) {
        result = syscall::link_cgroup(program, cgroup, hook.attach_type(), *flags);
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            _ => break,
        }
    }
    result
}

/// Whether a new link would come before programs that the link of program `ours` comes after: an
/// agent that did not order programs has made it, or others have come before it since.
pub(crate) fn is_beaten(hook: Hook, cgroup: BorrowedFd<'_>, ours: u32) -> io::Result<bool> {
    if !hook.decides() {
        return Ok(false);
    }
    // The last of those that run first, where the kernel can order programs at all.
    let Some((effective, last)) = with_empty(hook, cgroup, BPF_F_PREORDER)? else {
        return Ok(false);
    };
    if !is_in_front(&effective, ours, last) {
        return Ok(effective.contains(&ours));
    }
    // Linux 6.15 and 6.16 have no BPF_F_BEFORE: a new link would run behind this one.
    let order = with_empty(hook, cgroup, BPF_F_PREORDER | BPF_F_BEFORE)?;
    Ok(order.is_some_and(|(effective, first)| is_apart(&effective, first, ours)))
}

/// Whether `ours` is among the programs of this cgroup that run first: no program of a cgroup below
/// can run before it. Not where the kernel cannot order programs.
pub(crate) fn is_among_first(hook: Hook, cgroup: BorrowedFd<'_>, ours: u32) -> io::Result<bool> {
    let order = with_empty(hook, cgroup, BPF_F_PREORDER)?;
    Ok(order.is_some_and(|(effective, last)| is_in_front(&effective, ours, last)))
}

/// The programs that run in a cgroup while an empty one is attached with these flags, and the id of
/// that one. `None` where the kernel does not know the flags.
fn with_empty(
    hook: Hook,
    cgroup: BorrowedFd<'_>,
    flags: u32,
) -> io::Result<Option<(Vec<u32>, u32)>> {
    let empty = feature::empty(hook)?;
    let id = syscall::program_head(empty.as_fd())?.id;
    let _link = match syscall::link_cgroup(empty.as_fd(), cgroup, hook.attach_type(), flags) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
        result => result?,
    };
    Ok(Some((syscall::effective_programs(cgroup, hook.attach_type())?, id)))
}

/// Whether `ours` runs before `last`. Not where one of them does not run.
fn is_in_front(effective: &[u32], ours: u32, last: u32) -> bool {
    let place = |id| effective.iter().position(|program| *program == id);
    place(ours).zip(place(last)).is_some_and(|(ours, last)| ours < last)
}

/// Whether others run between `first`, the place that a new link would get, and `ours`. Programs of
/// the cgroups above that run before both cannot be overtaken.
fn is_apart(effective: &[u32], first: u32, ours: u32) -> bool {
    let place = |id| effective.iter().position(|program| *program == id);
    place(first).zip(place(ours)).is_some_and(|(first, ours)| first + 1 < ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hooks_that_decide_take_the_first_place() {
        for hook in Hook::ALL {
            let first = Place::First.flags(hook);
            let wanted = if hook.decides() { BPF_F_PREORDER | BPF_F_BEFORE } else { 0 };
            assert_eq!(first.first(), Some(&wanted), "{}", hook.name());
            assert_eq!(first.last(), Some(&0), "{}: an old kernel takes no flag", hook.name());
        }
    }

    #[test]
    fn a_link_is_replaced_if_a_new_one_would_run_earlier() {
        const OURS: u32 = 7;
        const EMPTY: u32 = 9;
        // Whether ours runs before the empty program, and whether others run between them.
        for (effective, is_first, is_between) in [
            (&[OURS, EMPTY][..], true, false),
            (&[1, OURS, EMPTY, 2], true, false),
            (&[EMPTY, OURS], false, false),
            (&[EMPTY, OURS, 1], false, false),
            (&[EMPTY, 1, OURS], false, true),
            // One of a cgroup above runs before both.
            (&[1, EMPTY, OURS], false, false),
            // Ours was detached meanwhile: the caller notices.
            (&[EMPTY], false, false),
            (&[OURS], false, false),
        ] {
            assert_eq!(is_in_front(effective, OURS, EMPTY), is_first, "{effective:?}");
            assert_eq!(is_apart(effective, EMPTY, OURS), is_between, "{effective:?}");
        }
    }
}
