//! Restores pins, links and the pin directory that another process removed.
//!
//! The agent holds its maps and links open, so removing a pin detaches nothing. After another
//! process detaches a link, connections are not translated until the agent attaches it again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use aya_obj::generated::bpf_attach_type;

use super::masquerade::RESTORED;
use crate::datapath::error::causes;
use crate::datapath::hook::Hook;
use crate::datapath::host::conntrack::Conntrack;
use crate::datapath::host::lock::Lock;
use crate::datapath::host::mount::check_bpffs;
use crate::datapath::host::syscall;
use crate::datapath::link::{DIRECTORY, Link, cgroup_id, pin_path};
use crate::datapath::maps::layout;
use crate::datapath::maps::spec::map_specs;
use crate::datapath::{Datapath, Options};

/// What [`Datapath::repair`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// What was restored, one sentence each.
    pub done: Vec<String>,
    /// What could not be restored, and why.
    pub failed: Vec<String>,
    /// Why connections from outside fail although topo-lb is to serve them, if they do.
    pub outside: Option<String>,
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
        let options = self.options.clone();
        self.repair_hooks(&options, &mut repairs);
        self.repair_guards(&options, &mut repairs);
        self.repair_accounting(&mut repairs);
        match self.settle_source() {
            Ok(true) => repairs.done.push(RESTORED.to_owned()),
            Ok(false) => {}
            Err(lack) => repairs.outside = Some(lack),
        }
        self.look_at_conntrack(&mut repairs);
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
        if layout::mark(pin_dir).map_err(|error| causes(&error))?.is_some() {
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

    /// Finds out whether the kernel drops connections from outside for want of room.
    fn look_at_conntrack(&mut self, repairs: &mut Repairs) {
        if self.masquerade.is_none() {
            return;
        }
        let now = Conntrack::look();
        let lack = now.zip(self.conntrack).and_then(|(now, before)| now.lack(&before));
        repairs.outside = repairs.outside.take().or(lack);
        self.conntrack = now;
    }

    fn repair_hooks(&mut self, options: &Options, repairs: &mut Repairs) {
        let mut links = std::mem::take(&mut self.links);
        for (hook, link) in &mut links {
            let held = Held { name: hook.name(), attach_type: hook.attach_type(), link };
            held.repair(options, repairs, |cgroup| {
                self.link(*hook, cgroup).map_err(|error| causes(&error))
            });
        }
        self.links = links;
    }
}

/// A program's link that this process holds open.
pub(super) struct Held<'a> {
    /// Of the program, and of the link's pin.
    pub(super) name: &'static str,
    pub(super) attach_type: bpf_attach_type,
    pub(super) link: &'a mut Link,
}

impl Held<'_> {
    /// Attaches the program again, by `attach`, if another process detached it; pins the link again if
    /// its pin is gone.
    pub(super) fn repair(
        self,
        options: &Options,
        repairs: &mut Repairs,
        attach: impl FnOnce(&File) -> Result<OwnedFd, String>,
    ) {
        let name = self.name;
        match self.restore(options, attach) {
            Ok(done) => repairs.done.extend(done),
            Err(reason) => repairs.failed.push(format!("{name} cannot be put back: {reason}")),
        }
    }

    fn restore(
        self,
        Options { pin_dir, cgroup_root, .. }: &Options,
        attach: impl FnOnce(&File) -> Result<OwnedFd, String>,
    ) -> Result<Option<String>, String> {
        let text = |error: io::Error| error.to_string();
        let Self { name, attach_type, link } = self;
        let path = pin_dir.join(DIRECTORY).join(name);
        let cgroup = File::open(cgroup_root).map_err(text)?;
        let id = cgroup_id(&cgroup).map_err(text)?;
        if !link.is_still_on(attach_type, id).map_err(text)? {
            let new = attach(&cgroup)?;
            absent(&path).map_err(text)?;
            syscall::pin(new.as_fd(), &path).map_err(text)?;
            *link = Link::open(&path).map_err(text)?.ok_or("its new pin is gone already")?;
            return Ok(Some(format!("the program of {name} was detached")));
        }
        if path.exists() {
            return Ok(None);
        }
        syscall::pin(link.as_fd(), &path).map_err(text)?;
        Ok(Some(format!("the pin of the link {name} was gone")))
    }
}

/// Removes a file; a missing one is no error.
fn absent(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
