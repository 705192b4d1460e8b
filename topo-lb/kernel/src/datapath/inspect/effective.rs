//! Queries the kernel for the programs at our hooks, in order, in the cgroups below the root.
//!
//! Most nodes have no foreign program at these hooks. With CAP_SYS_ADMIN the kernel lists loaded
//! programs, and that list settles it. Otherwise, or if there is a foreign program, the agent
//! queries every cgroup, a limited number in each round, because the programs of a child run before
//! those of its parent. If ours are among the programs that run first (`BPF_F_PREORDER`), no
//! program of a child can run before them, and the agent queries only the root.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;

use super::overridden::{Override, Precedence, before, own};
use super::pace::Pace;
use super::tolerated::{Tolerated, is_tolerated};
use super::trial;
use crate::datapath::attach::place::{self, Position};
use crate::datapath::hook::{Hook, ProgramIds};
use crate::datapath::host::feature;
use crate::datapath::host::mount::cgroup2_root;
use crate::datapath::host::syscall;
use crate::datapath::link::{Link, cgroup_id, pin_path};

/// Most findings that are kept.
const KEPT: usize = 64;

/// A cgroup that is still to be queried.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    /// Programs that run before ours in the cgroup above.
    inherited: BTreeMap<Hook, Vec<u32>>,
}

/// Queries the cgroups in rounds.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    tolerated: Vec<Tolerated>,
    /// Loaded programs by id, with the names of those that could be at our hooks.
    loaded: BTreeMap<u32, Option<String>>,
    pace: Pace,
    /// Whether programs of child cgroups may run before ours; unknown before the first round.
    descends: Option<bool>,
    open: Vec<Open>,
    /// Findings by cgroup.
    found: BTreeMap<PathBuf, Vec<Override>>,
}

/// The programs of pinned links that are attached to the cgroup with this id.
///
/// # Errors
/// A pin cannot be opened.
pub fn pinned(pin_dir: &Path, cgroup: u64) -> io::Result<ProgramIds> {
    let mut ours = ProgramIds::new();
    for hook in Hook::deciding() {
        if let Some(link) = Link::open(&pin_path(pin_dir, hook))?
            && link.is_on(hook.attach_type(), cgroup)
        {
            ours.insert(hook, link.program_id());
        }
    }
    Ok(ours)
}

/// Queries all cgroups once. Without an agent on `root`, attaches an empty program for a moment.
///
/// # Errors
/// The kernel does not list the programs in `root`, or accepts no program there.
pub fn look(root: &Path, pin_dir: &Path, tolerated: &[Tolerated]) -> io::Result<Vec<Override>> {
    let cgroup = File::open(root)?;
    let mut ours = pinned(pin_dir, cgroup_id(&cgroup)?)?;
    let mut links = Vec::new();
    for hook in Hook::deciding() {
        if let Entry::Vacant(missing) = ours.entry(hook) {
            let program = feature::empty(hook)?;
            missing.insert(syscall::program_head(program.as_fd())?.id);
            links.push(place::attach(hook, program.as_fd(), cgroup.as_fd(), Position::First)?);
        }
    }
    let mut watch = Watch::new(root.to_owned(), tolerated.to_vec());
    loop {
        let seen = watch.look(&ours)?;
        if seen.unasked == 0 {
            return Ok(seen.overrides);
        }
    }
}

/// Whether the kernel shows this process the names of programs.
#[must_use]
pub fn tells_names() -> bool {
    syscall::next_program(0).is_ok()
}

/// Path of the cgroup with this id; `None` if it is not in the hierarchy.
#[must_use]
pub fn path_of(cgroup: u64) -> Option<PathBuf> {
    let mut open = vec![cgroup2_root()?];
    while let Some(path) = open.pop() {
        if fs::metadata(&path).is_ok_and(|data| data.ino() == cgroup) {
            return Some(path);
        }
        open.extend(children(&path));
    }
    None
}

impl Watch {
    /// Starts without findings.
    #[must_use]
    pub fn new(root: PathBuf, tolerated: Vec<Tolerated>) -> Self {
        let (loaded, descends, open, found) = Default::default();
        Self { root, tolerated, loaded, pace: Pace::new(Instant::now()), descends, open, found }
    }

    /// Queries one round of cgroups; `ours` are our programs. Takes some microseconds if no foreign
    /// program is loaded, some milliseconds otherwise, and more in the few rounds that query all
    /// cgroups.
    ///
    /// # Errors
    /// The kernel does not list the programs in the cgroup root.
    pub fn look(&mut self, ours: &ProgramIds) -> io::Result<Precedence> {
        let Some(changed) = self.others(ours) else {
            self.open.clear();
            self.found.clear();
            return Ok(Precedence::default());
        };
        // The root and cgroups with a finding are queried in every round.
        self.ask(&self.root.clone(), &BTreeMap::new(), ours)?;
        for path in
            self.found.keys().filter(|path| **path != self.root).cloned().collect::<Vec<_>>()
        {
            // Without the list of the cgroup above, its programs would count as this one's. The walk
            // through all cgroups finds this one again.
            let inherited = self.inherited(&path, ours);
            if inherited.and_then(|inherited| self.ask(&path, &inherited, ours)).is_err() {
                self.found.remove(&path);
            }
        }
        let root = &self.root;
        let descends = *self.descends.get_or_insert_with(|| !are_among_first(root, ours));
        if descends && self.open.is_empty() {
            self.open.push(Open { path: self.root.clone(), inherited: BTreeMap::new() });
        }
        for _ in 0..self.pace.begin(changed, Instant::now()) {
            let Some(Open { path, inherited }) = self.open.pop() else { break };
            // A cgroup that is gone has no children either.
            if let Ok(inherited) = self.ask(&path, &inherited, ours) {
                self.open.extend(
                    children(&path).map(|path| Open { path, inherited: inherited.clone() }),
                );
            }
        }
        Ok(Precedence {
            overrides: self.found.values().flatten().take(KEPT).cloned().collect(),
            unasked: self.open.len(),
            in_front: Vec::new(),
        })
    }

    /// Whether programs that could be at our hooks were loaded or removed since the last round;
    /// `None` if no foreign program can be there.
    fn others(&mut self, ours: &ProgramIds) -> Option<bool> {
        let Ok(changed) = self.read_loaded() else {
            // The kernel does not list programs: query the cgroups.
            self.loaded.clear();
            return Some(false);
        };
        let ours: BTreeSet<&u32> = ours.values().collect();
        let are_there = self.loaded.iter().any(|(id, name)| name.is_some() && !ours.contains(id));
        are_there.then_some(changed)
    }

    /// Reads the loaded programs. Returns whether those that could be at our hooks have changed.
    /// The kernel does not reuse ids.
    fn read_loaded(&mut self) -> io::Result<bool> {
        let (mut loaded, mut last, mut changed) = (BTreeMap::new(), 0, false);
        while let Some(id) = syscall::next_program(last)? {
            let name = match self.loaded.remove(&id) {
                Some(known) => known,
                None => {
                    let name = name_of(id);
                    changed |= name.is_some();
                    name
                }
            };
            loaded.insert(id, name);
            last = id;
        }
        changed |= self.loaded.values().any(Option::is_some);
        self.loaded = loaded;
        Ok(changed)
    }

    /// Queries one cgroup and records findings. Returns what runs before ours at each hook.
    fn ask(
        &mut self,
        path: &Path,
        inherited: &BTreeMap<Hook, Vec<u32>>,
        ours: &ProgramIds,
    ) -> io::Result<BTreeMap<Hook, Vec<u32>>> {
        let all = before_ours(path, ours)?;
        let mut found = Vec::new();
        for (&hook, first) in &all {
            for program in own(first, inherited.get(&hook).map_or(&[], Vec::as_slice)) {
                // One that was loaded since the programs were listed is not among them.
                let known = self.loaded.get(&program).cloned();
                let name = known.unwrap_or_else(|| name_of(program));
                if !is_tolerated(&self.tolerated, program, name.as_deref()) {
                    // In a cgroup below the root, a program is attached to it or inherited.
                    let above = (path == self.root).then(|| above(path, hook, program)).flatten();
                    let cgroup = path.to_owned();
                    found.push(Override { hook, cgroup, above, program, name });
                }
            }
        }
        if found.is_empty() {
            self.found.remove(path);
        } else if self.found.len() < KEPT || self.found.contains_key(path) {
            self.found.insert(path.to_owned(), found);
        }
        Ok(all)
    }

    /// The programs that run before ours in the cgroup above.
    fn inherited(&self, path: &Path, ours: &ProgramIds) -> io::Result<BTreeMap<Hook, Vec<u32>>> {
        let above = path.parent().filter(|above| above.starts_with(&self.root));
        above.map_or(Ok(BTreeMap::new()), |above| before_ours(above, ours))
    }
}

/// The programs that run before ours in a cgroup, in order, for each hook with such programs.
fn before_ours(path: &Path, ours: &ProgramIds) -> io::Result<BTreeMap<Hook, Vec<u32>>> {
    let cgroup = File::open(path)?;
    let first = |hook: Hook| {
        let effective = syscall::effective_programs(cgroup.as_fd(), hook.attach_type())?;
        Ok((hook, before(&effective, ours.get(&hook).copied()).to_vec()))
    };
    let mut all = Hook::deciding().map(first).collect::<io::Result<BTreeMap<_, Vec<u32>>>>()?;
    all.retain(|_, first| !first.is_empty());
    Ok(all)
}

/// The nearest cgroup above `root` that a program is attached to; `None` if it is attached to
/// `root` itself, or if the kernel does not list it.
fn above(root: &Path, hook: Hook, program: u32) -> Option<PathBuf> {
    let is_on = |path: &Path| -> io::Result<bool> {
        let cgroup = File::open(path)?;
        Ok(syscall::attached_programs(cgroup.as_fd(), hook.attach_type())?.contains(&program))
    };
    let root = root.canonicalize().ok()?;
    // Above the hierarchy's mount there are no cgroups to query.
    let mut asked = root.ancestors().map_while(|path| Some((path, is_on(path).ok()?)));
    let (found, _) = asked.find(|(_, is_on)| *is_on)?;
    (found != root).then(|| found.to_owned())
}

/// Whether ours are among the programs that run first; `false` if the kernel does not list them.
fn are_among_first(root: &Path, ours: &ProgramIds) -> bool {
    let Ok(cgroup) = File::open(root) else { return false };
    Hook::deciding().all(|hook| {
        let program = ours.get(&hook).copied();
        program.is_some_and(|program| {
            place::is_among_first(hook, cgroup.as_fd(), program).unwrap_or_default()
        })
    })
}

/// The name of a loaded program that could be at our hooks; `None` for other programs.
fn name_of(id: u32) -> Option<String> {
    let head = match syscall::program_by_id(id).and_then(|one| syscall::program_head(one.as_fd())) {
        Ok(head) => head,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        // Unknown: it could be at our hooks, so the cgroups must be queried.
        Err(_) => return Some(String::new()),
    };
    (head.program_type == BPF_PROG_TYPE_CGROUP_SOCK_ADDR as u32).then_some(head.name)
}

/// The cgroups below, except those of trials.
fn children(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| !trial::is_trial(&entry.file_name()))
        .map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_above_that_cannot_be_asked_is_not_one_without_programs() {
        let root = tempfile::tempdir().unwrap();
        let watch = Watch::new(root.path().to_owned(), Vec::new());
        let inherited = |path: &Path| watch.inherited(path, &ProgramIds::new());
        inherited(&root.path().join("pod")).unwrap_err();
        assert_eq!(inherited(root.path()).unwrap(), BTreeMap::new(), "nothing is above the root");
    }
}
