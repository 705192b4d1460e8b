//! Restores pins, links and the pin directory that another process removed.
//!
//! The agent holds its maps and links open, so removing a pin detaches nothing. After another
//! process detaches a link, connections are not translated until the agent attaches it again.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::link::{DIRECTORY, Link, cgroup_id, pin_path};
use crate::datapath::Datapath;
use crate::datapath::error::causes;
use crate::datapath::hook::Hook;
use crate::datapath::host::lock::Lock;
use crate::datapath::host::mount::check_bpffs;
use crate::datapath::host::syscall;
use crate::datapath::maps::renewal;
use crate::datapath::maps::spec::map_specs;

/// What [`Datapath::repair`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// What was restored, one sentence each.
    pub done: Vec<String>,
    /// What could not be restored, and why.
    pub failed: Vec<String>,
}

impl Datapath {
    /// Opens the pinned links of the hooks and holds them.
    ///
    /// # Errors
    /// A pin cannot be opened.
    pub(crate) fn hold_links(&mut self) -> io::Result<()> {
        let mut links = Vec::new();
        for hook in Hook::ALL {
            let link = Link::open(&pin_path(&self.options.pin_dir, hook))?;
            links.push((hook, link.ok_or(io::ErrorKind::NotFound)?));
        }
        self.links = links;
        Ok(())
    }

    /// Checks that maps, links and the pin directory are in place, and restores what is missing.
    /// Takes some microseconds if nothing is missing.
    pub fn repair(&mut self) -> Repairs {
        let mut repairs = Repairs::default();
        let pin_dir = self.options.pin_dir.clone();
        if let Err(reason) = self.repair_directory(&pin_dir, &mut repairs) {
            repairs.failed.push(format!("{} cannot be put back: {reason}", pin_dir.display()));
            return repairs;
        }
        self.repair_maps(&pin_dir, &mut repairs);
        for place in 0..self.links.len() {
            let hook = self.links[place].0;
            if let Err(reason) = self.repair_link(place, &pin_dir, &mut repairs) {
                repairs.failed.push(format!("{} cannot be put back: {reason}", hook.name()));
            }
        }
        self.repair_accounting(&mut repairs);
        self.repair_masquerade(&mut repairs);
        repairs
    }

    fn repair_directory(&mut self, pin_dir: &Path, repairs: &mut Repairs) -> Result<(), String> {
        if !pin_dir.exists() {
            check_bpffs(pin_dir).map_err(|error| causes(&error))?;
            fs::create_dir_all(pin_dir).map_err(|error| error.to_string())?;
            // The old lock was on the removed directory.
            self.lock = Lock::take(pin_dir).map_err(|error| causes(&error))?;
            repairs.done.push(format!("the pin directory {} was gone", pin_dir.display()));
        }
        let links = pin_dir.join(DIRECTORY);
        if !links.exists() {
            fs::create_dir(&links).map_err(|error| error.to_string())?;
        }
        if renewal::mark(pin_dir).map_err(|error| causes(&error))?.is_some() {
            repairs.done.push("the mark of the maps' layout was gone".into());
        }
        Ok(())
    }

    fn repair_maps(&self, pin_dir: &Path, repairs: &mut Repairs) {
        for spec in map_specs(&self.options.capacity).iter().filter(|spec| spec.is_pinned) {
            let path = pin_dir.join(spec.name);
            let Some(map) = self.ebpf.map(spec.name).filter(|_| !path.exists()) else { continue };
            match map.pin(&path) {
                Ok(()) => repairs.done.push(format!("the pin of the map {} was gone", spec.name)),
                Err(error) => {
                    let reason = causes(&error);
                    repairs.failed.push(format!("{} cannot be pinned: {reason}", spec.name));
                }
            }
        }
    }

    fn repair_link(
        &mut self,
        place: usize,
        pin_dir: &Path,
        repairs: &mut Repairs,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let (hook, link) = &self.links[place];
        let (hook, path) = (*hook, pin_path(pin_dir, *hook));
        let cgroup = File::open(&self.options.cgroup_root).map_err(text)?;
        let id = cgroup_id(&cgroup).map_err(text)?;
        if !link.is_still_on(hook.attach_type(), id).map_err(text)? {
            let link = self.link(hook, &cgroup).map_err(|error| causes(&error))?;
            absent(&path).map_err(text)?;
            syscall::pin(link.as_fd(), &path).map_err(text)?;
            let link = Link::open(&path).map_err(text)?;
            self.links[place].1 = link.ok_or("its new pin is gone already")?;
            repairs.done.push(format!("the program of {} was detached", hook.name()));
        } else if !path.exists() {
            syscall::pin(link.as_fd(), &path).map_err(text)?;
            repairs.done.push(format!("the pin of the link {} was gone", hook.name()));
        }
        Ok(())
    }
}

/// Removes a file; a missing one is no error.
fn absent(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
