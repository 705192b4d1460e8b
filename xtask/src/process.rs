//! Child processes: quiet ones with a log, visible ones, and the one that replaces xtask.
//!
//! Each child has its own process group, so that xtask can end it with all its children: Cargo does
//! not forward signals to the tests that it runs.

use fs_err::{self as fs, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::progress::{Running, clock, note};

/// The signal that stops xtask; 0: none.
static CAUGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The polling interval for children.
const PERIOD: Duration = Duration::from_millis(80);

/// How long a group may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// When to stop waiting for a group that SIGKILL has not ended.
const GIVE_UP: Duration = Duration::from_secs(15);

/// How many lines of a log to show when its step fails.
const TAIL_LINES: usize = 40;

/// Records stop signals; the code that waits for a child then ends it. A handler, unlike "ignore",
/// is not inherited by an executed program.
pub(crate) fn catch_signals() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let number = usize::try_from(signal)?;
        signal_hook::flag::register_usize(signal, CAUGHT.clone(), number)
            .context("cannot catch signals")?;
    }
    Ok(())
}

/// The signal that stops xtask; 0: none.
pub(crate) fn caught() -> u8 {
    u8::try_from(CAUGHT.load(Ordering::SeqCst)).unwrap_or(0)
}

/// Runs a command with its output in a log, and shows the log's last lines if the command fails.
pub(crate) fn run_logged(
    title: impl Into<String>,
    command: &mut Command,
    log: &Path,
) -> Result<()> {
    let running = Running::start(title);
    let result = to_log(command, log, None, |last_line| running.tick(last_line));
    running.end(result.is_ok());
    if result.is_err() && caught() == 0 {
        let mut lines = tail(log);
        lines.retain(|line| !is_progress(line));
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            note(&format!("│ {line}"));
        }
    }
    result
}

/// Runs a command with its output in a log; ends it after `limit`.
pub(crate) fn to_log(
    command: &mut Command,
    log: &Path,
    limit: Option<Duration>,
    tick: impl FnMut(&str),
) -> Result<()> {
    Background::start(command, log)?.finish(limit, tick)
}

/// A command in the background, with its output in a log. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Background {
    child: Child,
    /// For messages.
    command: String,
    log: PathBuf,
}

impl Background {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        fs::create_dir_all(log.parent().unwrap_or(log))?;
        let output = File::create(log)?.into_file();
        let errors = output.try_clone()?;
        let child = spawn(command.stdout(output).stderr(errors))?;
        Ok(Self { child, command: display(command), log: log.to_path_buf() })
    }

    /// Waits until the command ends; ends it after `limit`.
    pub(crate) fn finish(
        mut self,
        limit: Option<Duration>,
        mut tick: impl FnMut(&str),
    ) -> Result<()> {
        let log = self.log.clone();
        let show = || tick(tail(&log).last().map_or("", String::as_str));
        wait(&mut self.child, &self.command, limit, show)
            .map_err(|error| anyhow!("{error}; its output: {}", self.log.display()))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            end(&mut self.child);
        }
    }
}

/// Runs a command with visible output; ends it after `limit`.
pub(crate) fn run_visible(command: &mut Command, limit: Duration) -> Result<()> {
    wait(&mut spawn(command)?, &display(command), Some(limit), || ())
}

/// Replaces this process by the command, with its signals, output and exit code.
///
/// # Errors
/// Whenever it returns: the command cannot be started.
pub(crate) fn become_command(command: &mut Command) -> Result<()> {
    if caught() != 0 {
        bail!("interrupted");
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start `{}`", display(command)))
}

/// The output of a short command, if it succeeds.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as typed in a shell, without its environment.
pub(crate) fn display(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    // No word of a command has a zero byte, which alone cannot be quoted.
    shlex::try_quote(word).unwrap_or_default().into_owned()
}

fn spawn(command: &mut Command) -> Result<Child> {
    let child = command.stdin(Stdio::null()).process_group(0).spawn();
    child.with_context(|| format!("cannot start `{}`", display(command)))
}

fn wait(
    child: &mut Child,
    command: &str,
    limit: Option<Duration>,
    mut tick: impl FnMut(),
) -> Result<()> {
    let begun = Instant::now();
    while caught() == 0 {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return succeeded(status, command);
        }
        if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
            end(child);
            bail!(
                "`{command}` did not end within {}: it hangs, or this machine is much too slow",
                clock(limit)
            );
        }
        tick();
        thread::sleep(PERIOD);
    }
    end(child);
    bail!("interrupted")
}

fn succeeded(status: ExitStatus, command: &str) -> Result<()> {
    match status.success() {
        true => Ok(()),
        false => bail!("`{command}` failed ({status})"),
    }
}

/// Ends a child's process group, and waits until it is empty.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let begun = Instant::now();
    let mut signal = Signal::TERM;
    // Fails if the group is empty, which the loop detects.
    let _ = kill_process_group(group, signal);
    while begun.elapsed() < GIVE_UP {
        // The child stays in the group until its status is read.
        let is_gone = !matches!(child.try_wait(), Ok(None));
        if is_gone && test_kill_process_group(group).is_err() {
            return;
        }
        if signal == Signal::TERM && begun.elapsed() > GRACE {
            signal = Signal::KILL;
            let _ = kill_process_group(group, signal);
        }
        thread::sleep(PERIOD);
    }
}

/// The last lines of a file; empty if it cannot be read.
fn tail(log: &Path) -> Vec<String> {
    const BLOCK: u64 = 16 * 1024;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BLOCK)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    lines(&String::from_utf8_lossy(&read().unwrap_or_default()))
}

/// Whether this is one of Cargo's progress lines, which do not explain a failure.
fn is_progress(line: &str) -> bool {
    let indented = line.starts_with("   ");
    indented
        && ["Compiling ", "Checking ", "Downloaded ", "Downloading ", "Documenting ", "Adding "]
            .iter()
            .any(|start| line.trim_start().starts_with(start))
}

/// The non-empty lines, without text that a carriage return overwrites.
fn lines(text: &str) -> Vec<String> {
    let seen = text.lines().map(|line| line.rsplit('\r').next().unwrap_or(line).trim_end());
    seen.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_displayed_as_one_would_type_it() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "topo-lb", "--", "it's a name", ""]);
        assert_eq!(display(&command), r#"cargo test -p topo-lb -- "it's a name" ''"#);
    }

    #[test]
    fn the_lines_of_a_log_are_those_that_a_person_would_see() {
        let text = "first\n\n 10%\r 50%\r100%\nlast  \n";
        assert_eq!(lines(text), ["first", "100%", "last"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn progress_is_told_from_what_went_wrong() {
        assert!(is_progress("   Compiling libc v0.2.191"));
        assert!(is_progress("    Checking libc v0.2.191"));
        assert!(!is_progress("error: Compiling it failed"));
        assert!(!is_progress("   |         ^^^^"));
    }

    #[test]
    fn a_failing_command_leaves_its_output_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("step.log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo to the log; exit 3"]);
        let error = to_log(&mut command, &log, None, |_| ()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("step.log"), "{text}");
        assert_eq!(tail(&log), ["to the log"]);
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 | sleep 60; true"]);
        let begun = Instant::now();
        let error = run_visible(&mut command, Duration::from_millis(100)).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(format!("{error:#}").contains("did not end within 0.1 s"), "{error:#}");
    }

    #[test]
    fn a_background_command_that_is_dropped_is_gone_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut command = Command::new("sh");
        // All of them hold the pipe open. The last one writes to it, then sleeps.
        let script = r#"exec 3>"$0"; (sh -c 'echo >&3; exec sleep 60'; true); true"#;
        command.args(["-c", script]).arg(&pipe);
        let background = Background::start(&mut command, &folder.path().join("end.log")).unwrap();
        let mut pipe = File::open(&pipe).unwrap();
        pipe.read_exact(&mut [0]).unwrap();
        let begun = Instant::now();
        drop(background);
        // The pipe ends when the last of them has ended.
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
