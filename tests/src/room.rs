//! A place for programs of Debian's packages that are not installed: mounts in which the packages' files are laid over
//! those of the machine. What a program writes there (`/etc`, `/var`, `/run`) is gone with it.

use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result};
use fs_err::{self as fs, File};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::cgroup::Cgroup;
use crate::cluster::Cluster;
use crate::netns::NetNs;
use crate::pod::Pod;
use crate::process::{Running, enter, fed, printed, spawn_logged};
use crate::requirements;

/// What Debian's packages have their files in.
const LAID_OVER: [&str; 3] = ["usr", "etc", "var"];

/// Mounts that programs enter, on one node. They last as long as this, or a process inside.
#[derive(Debug)]
pub struct Room<'a> {
    cluster: &'a Cluster,
    node: String,
    mounts: File,
}

impl<'a> Room<'a> {
    /// Makes a room on a node.
    ///
    /// # Errors
    /// `TOPO_LB_NEIGHBOURS` names no folder with the packages' files, or the kernel has no overlayfs.
    pub fn on(cluster: &'a Cluster, node: &str) -> Result<Self> {
        let files = requirements::neighbours()?;
        let folder = cluster.folder().join(format!("room-{node}"));
        fs::create_dir(&folder)?;
        let mounts = thread::scope(|scope| {
            let thread = scope.spawn(|| inside(&files, &folder));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(Self { cluster, node: node.to_owned(), mounts })
    }

    /// Makes `command` run in this room: in a network namespace and a cgroup.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn enter(&self, command: &mut Command, netns: &NetNs, cgroup: &Cgroup) -> Result<()> {
        // First, so that it looks for programs where Debian has them.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        enter(command, netns, Some(cgroup))?;
        let mounts = self.mounts.try_clone()?;
        // SAFETY: between fork and exec this makes one system call, on a file opened before; it neither allocates nor
        // locks.
        unsafe {
            command.pre_exec(move || {
                Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
            });
        }
        Ok(())
    }

    /// Makes `command` run in this room as a process of the node that no agent serves.
    fn beside(&self, command: &mut Command) -> Result<()> {
        self.enter(command, self.cluster.node_netns(&self.node)?, self.cluster.agents())
    }

    /// Runs lines of a shell on the node, and returns what they print. It ends with the first that fails.
    ///
    /// # Errors
    /// One fails; the error has what it says.
    pub fn run(&self, lines: &str) -> Result<String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", lines]).stdin(Stdio::null());
        self.beside(&mut command)?;
        printed(&mut command).with_context(|| format!("on {}", self.node))
    }

    /// Like [`run`](Self::run), of a program with this input and these variables.
    ///
    /// # Errors
    /// It fails; the error has all that it says.
    pub fn run_fed(
        &self,
        program: &str,
        input: &str,
        variables: &[(&str, &str)],
    ) -> Result<String> {
        let mut command = Command::new(program);
        command.envs(variables.iter().copied());
        self.beside(&mut command)?;
        let output = fed(&mut command, input)?;
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        anyhow::ensure!(output.status.success(), "{program} on {}: {said} {complained}", self.node);
        Ok(said.into_owned())
    }

    /// Starts a program on the node, which an agent there does not serve. `words`: its path and arguments. What it
    /// prints goes to the log `name`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(&self, name: &str, words: &[&str]) -> Result<Running> {
        let netns = self.cluster.node_netns(&self.node)?;
        self.start_in(name, words, netns, self.cluster.agents())
    }

    /// Like [`start`](Self::start), in the node's cgroup: an agent serves it, like a Pod with `hostNetwork`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_on_node(&self, name: &str, words: &[&str]) -> Result<Running> {
        let node = self.cluster.node(&self.node)?;
        self.start_in(name, words, &node.netns, &node.cgroup)
    }

    /// Like [`start`](Self::start), in a pod: an agent serves it.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_in_pod(&self, name: &str, words: &[&str], pod: &Pod) -> Result<Running> {
        self.start_in(name, words, &pod.netns, &pod.cgroup)
    }

    fn start_in(
        &self,
        name: &str,
        words: &[&str],
        netns: &NetNs,
        cgroup: &Cgroup,
    ) -> Result<Running> {
        let (program, arguments) = words.split_first().context("a program")?;
        let mut command = Command::new(program);
        command.args(arguments);
        self.enter(&mut command, netns, cgroup)?;
        spawn_logged(&mut command, &self.log(name))
    }

    /// Like [`start`](Self::start): it runs until the cluster is removed.
    ///
    /// # Errors
    /// It does not start.
    pub fn detach(&self, name: &str, words: &[&str]) -> Result<()> {
        // The cluster kills all in its cgroups.
        std::mem::forget(self.start(name, words)?);
        Ok(())
    }

    /// The network namespace of the node.
    ///
    /// # Errors
    /// The lab has no such node.
    pub fn netns(&self) -> Result<&NetNs> {
        self.cluster.node_netns(&self.node)
    }

    /// Runs lines of a shell on the node; `end` are those that run when the returned value is dropped.
    ///
    /// # Errors
    /// One of the first fails.
    pub fn begin(self: &Rc<Self>, begin: &str, end: &str) -> Result<Begun<'a>> {
        let begun = Begun { room: Rc::clone(self), running: None, end: end.to_owned() };
        self.run(begin)?;
        Ok(begun)
    }

    /// Like [`start`](Self::start): the program gets SIGTERM when the returned value is dropped, and then `end` runs.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve(self: &Rc<Self>, name: &str, words: &[&str], end: &str) -> Result<Begun<'a>> {
        let running = Some(self.start(name, words)?);
        Ok(Begun { room: Rc::clone(self), running, end: end.to_owned() })
    }

    /// Where a program's output goes.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.cluster.folder().join(format!("{name}-{}.log", self.node))
    }

    /// What a program has printed.
    #[must_use]
    pub fn said(&self, name: &str) -> String {
        fs::read_to_string(self.log(name)).unwrap_or_default()
    }

    /// Writes a file in the room.
    ///
    /// # Errors
    /// Its folder cannot be made.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let folder = Path::new(path).parent().context("a folder")?.display();
        let lines = format!("mkdir -p {folder}; cat > {path}");
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &lines]);
        self.beside(&mut command)?;
        let output = fed(&mut command, text)?;
        anyhow::ensure!(output.status.success(), "{path}: {output:?}");
        Ok(())
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }
}

/// What somebody has begun on a node; dropping it ends that.
#[derive(Debug)]
pub struct Begun<'a> {
    room: Rc<Room<'a>>,
    running: Option<Running>,
    end: String,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            // What does not end by itself is killed.
            let _ = running.stop(Duration::from_secs(5));
        }
        if let Err(error) = self.room.run(&self.end) {
            eprintln!("{error:#}");
        }
    }
}

/// Runs on a thread of its own, which leaves the machine's mounts.
fn inside(files: &Path, folder: &Path) -> Result<File> {
    // SAFETY: only this thread leaves the namespace, and shares no file descriptor table anew.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("cannot make a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot make / private")?;
    place("tmpfs", folder, "")?;
    for name in LAID_OVER {
        let (upper, work) = (folder.join(name), folder.join(format!("{name}.work")));
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        let at = Path::new("/").join(name);
        let lower = files.join(name);
        let [over, under, upper, work] = [&lower, &at, &upper, &work].map(|it| it.display());
        let options = format!("lowerdir={over}:{under},upperdir={upper},workdir={work}");
        place("overlay", &at, &options)?;
    }
    place("tmpfs", Path::new("/run"), "")?;
    fs::create_dir("/run/lock")?;
    // libxdp makes a folder there, and leaves it.
    place("bpf", Path::new("/sys/fs/bpf"), "")?;
    Ok(File::open("/proc/thread-self/ns/mnt")?)
}

fn place(kind: &str, at: &Path, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    let options = Some(options.as_c_str()).filter(|it| !it.is_empty());
    mount(kind, at, kind, MountFlags::empty(), options)
        .map_err(io::Error::from)
        .with_context(|| format!("cannot mount {kind} at {}", at.display()))
}
