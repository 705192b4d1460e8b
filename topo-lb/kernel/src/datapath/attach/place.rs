//! The place of our program among others at the same hook.
//!
//! The kernel runs all programs of a hook one after the other: those of a cgroup in the order of
//! attaching, then those of its parent. Each sees the address that the earlier ones left. The first
//! program that sees the ClusterIP decides, so `connect` and `sendmsg` must be first. `recvmsg` and
//! `getpeername` undo the translation, so they must be last, which is the order without flags.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::datapath::hook::Hook;
use crate::datapath::host::feature;
use crate::datapath::host::syscall::{self, BPF_F_BEFORE, BPF_F_PREORDER};

/// The requested position at a hook that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Before all others, as far as the kernel supports it.
    First,
    /// Among those that run first, after the existing ones.
    Behind,
}

impl Position {
    /// The flags to try, best first; every kernel accepts the last. EINVAL: an unknown flag.
    const fn flags(self, hook: Hook) -> &'static [u32] {
        match self {
            _ if !hook.decides() => &[0],
            // `BPF_F_PREORDER` is older than `BPF_F_BEFORE` for cgroups.
            Self::First => &[BPF_F_PREORDER | BPF_F_BEFORE, BPF_F_PREORDER, 0],
            Self::Behind => &[BPF_F_PREORDER, 0],
        }
    }
}

/// Attaches `program` to `cgroup`. Detaches no other program.
pub(crate) fn attach(
    hook: Hook,
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    position: Position,
) -> io::Result<OwnedFd> {
    let mut result = Err(io::ErrorKind::InvalidInput.into());
    for flags in position.flags(hook) {
        result = syscall::link_cgroup(program, cgroup, hook.attach_type(), *flags);
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            _ => break,
        }
    }
    result
}

/// Whether a new link would run before programs that run before program `ours`: the link was
/// created by an agent that did not order programs, or others were attached before it since.
pub(crate) fn is_beaten(hook: Hook, cgroup: BorrowedFd<'_>, ours: u32) -> io::Result<bool> {
    if !hook.decides() {
        return Ok(false);
    }
    // The last of those that run first, if the kernel can order programs at all.
    let Some((effective, last)) = with_empty(hook, cgroup, BPF_F_PREORDER)? else {
        return Ok(false);
    };
    if !is_in_front(&effective, ours, last) {
        return Ok(effective.contains(&ours));
    }
    // Linux 6.15 and 6.16 have no BPF_F_BEFORE: a new link would run after this one.
    let order = with_empty(hook, cgroup, BPF_F_PREORDER | BPF_F_BEFORE)?;
    Ok(order.is_some_and(|(effective, first)| is_apart(&effective, first, ours)))
}

/// Whether `ours` is among the programs of this cgroup that run first: no program of a cgroup below
/// can then run before it. `false` if the kernel cannot order programs.
pub(crate) fn is_among_first(hook: Hook, cgroup: BorrowedFd<'_>, ours: u32) -> io::Result<bool> {
    let order = with_empty(hook, cgroup, BPF_F_PREORDER)?;
    Ok(order.is_some_and(|(effective, last)| is_in_front(&effective, ours, last)))
}

/// Attaches an empty program with these flags for a moment. Returns the programs that run in the
/// cgroup meanwhile, and the empty one's id; `None` if the kernel does not know the flags.
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

/// Whether `ours` runs before `last`; `false` if one of them does not run.
fn is_in_front(effective: &[u32], ours: u32, last: u32) -> bool {
    let place = |id| effective.iter().position(|program| *program == id);
    place(ours).zip(place(last)).is_some_and(|(ours, last)| ours < last)
}

/// Whether others run between `first`, the place of a new link, and `ours`. Programs of cgroups
/// above that run before both cannot be overtaken.
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
            let first = Position::First.flags(hook);
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
            // A program of a cgroup above runs before both.
            (&[1, EMPTY, OURS], false, false),
            // Ours was detached meanwhile; the caller handles that.
            (&[EMPTY], false, false),
            (&[OURS], false, false),
        ] {
            assert_eq!(is_in_front(effective, OURS, EMPTY), is_first, "{effective:?}");
            assert_eq!(is_apart(effective, EMPTY, OURS), is_between, "{effective:?}");
        }
    }
}
