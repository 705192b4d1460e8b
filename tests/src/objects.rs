//! BPF objects of the kernel by id: what an agent made, and whether it is gone.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};
use fs_err as fs;
use topo_lb_kernel::datapath::host::syscall::open_pin;

use crate::wait::{PATIENCE, until};

/// Programs, maps and links by id. The kernel does not reuse ids soon: a gone id is a gone object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    links: BTreeSet<u32>,
}

impl Objects {
    /// Everything pinned at or below `path`, the links' programs, and the programs' maps.
    pub fn pinned(path: &Path) -> Result<Self> {
        let mut found = Self::default();
        found.collect(path)?;
        // Another process may unload a program meanwhile; that error does not concern this lab.
        for program in loaded_programs().flatten() {
            if found.programs.contains(&program.id()) {
                found.maps.extend(program.map_ids()?.unwrap_or_default());
            }
        }
        Ok(found)
    }

    fn collect(&mut self, path: &Path) -> Result<()> {
        if path.is_dir() {
            let entries = fs::read_dir(path)?;
            for entry in entries.flatten() {
                self.collect(&entry.path())?;
            }
            return Ok(());
        }
        let pin = open_pin(path)?.with_context(|| format!("no pin {}", path.display()))?;
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", pin.as_raw_fd()))?;
        let id = |name| {
            let value = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse::<u32>().ok())
        };
        // The facts of a link also have the id of its program.
        match (id("map_id"), id("prog_id"), id("link_id")) {
            (None, None, None) => bail!("{} is neither map, program nor link", path.display()),
            (map, program, link) => {
                self.maps.extend(map);
                self.programs.extend(program);
                self.links.extend(link);
            }
        }
        Ok(())
    }

    /// Adds the objects of another set.
    pub fn extend(&mut self, other: &Self) {
        self.programs.extend(&other.programs);
        self.maps.extend(&other.maps);
        self.links.extend(&other.links);
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.maps.is_empty() && self.links.is_empty()
    }

    /// The number of programs.
    #[must_use]
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// The number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The objects that the kernel still has.
    #[must_use]
    pub fn remaining(&self) -> Self {
        let programs = loaded_programs().flatten().map(|program| program.id());
        let maps = loaded_maps().flatten().map(|map| map.id());
        let links = loaded_links().flatten().map(|link| link.id());
        Self {
            programs: programs.filter(|id| self.programs.contains(id)).collect(),
            maps: maps.filter(|id| self.maps.contains(id)).collect(),
            links: links.filter(|id| self.links.contains(id)).collect(),
        }
    }

    /// Waits until all objects are gone; the kernel frees them asynchronously.
    pub fn wait_until_gone(&self) -> Result<()> {
        until("the end of every BPF object of the lab", PATIENCE, || {
            let remaining = self.remaining();
            Ok(if remaining.is_empty() { Ok(()) } else { Err(remaining) })
        })?;
        Ok(())
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, maps, links } = self;
        write!(f, "programs {programs:?}, maps {maps:?}, links {links:?}")
    }
}
