//! Children: quiet ones that write to a log, visible ones, and the one that takes xtask's place.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::progress::{Screen, clock};

/// The signal that asked xtask to stop; 0: none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// How often a child is looked at: often enough for a spinner, and no load.
const PERIOD: Duration = Duration::from_millis(80);

/// How long a child that was asked to end may take for it.
const GRACE: Duration = Duration::from_secs(10);

/// How much of a log is shown when its step has failed.
const TAIL_LINES: usize = 40;
const ALL_LINES: usize = usize::MAX;

/// Lets children end by themselves when Ctrl-C reaches all of the terminal's group: xtask only
/// remembers the signal, waits for its child, and then ends too. A handler, unlike "ignore", is
/// not inherited by what is executed.
pub(crate) fn catch_signals() {
    extern "C" fn remember(signal: libc::c_int) {
        CAUGHT.store(signal, Ordering::SeqCst);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `remember` only stores to an atomic, which a signal handler may do.
        unsafe { libc::signal(signal, remember as *const () as libc::sighandler_t) };
    }
}

/// The signal that asked xtask to stop; 0: none.
pub(crate) fn caught() -> u8 {
    u8::try_from(CAUGHT.load(Ordering::SeqCst)).unwrap_or(0)
}

/// Runs a command with its output in a log, of which the last lines are shown if it fails.
///
/// # Errors
/// The command cannot be started, fails, or was interrupted.
pub(crate) fn run_logged(
    screen: &Screen,
    title: impl Into<String>,
    command: &mut Command,
    log: &Path,
) -> Result<Duration> {
    let mut running = screen.start(title);
    let result = to_log(command, log, None, |last_line| running.tick(last_line));
    match result {
        Ok(()) => Ok(running.done()),
        Err(error) => {
            running.failed();
            if caught() == 0 {
                let lines: Vec<_> =
                    tail(log, ALL_LINES).into_iter().filter(|line| !is_progress(line)).collect();
                for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                    screen.note(&format!("│ {line}"));
                }
            }
            Err(error)
        }
    }
}

/// Runs a command with its output in a log, and ends it after `limit`.
///
/// # Errors
/// The command cannot be started, fails, takes too long, or was interrupted.
pub(crate) fn to_log(
    command: &mut Command,
    log: &Path,
    limit: Option<Duration>,
    mut tick: impl FnMut(&str),
) -> Result<()> {
    let mut child = start(command, log)?;
    let status = wait(&mut child, limit, || tick(tail(log, 1).first().map_or("", String::as_str)))?;
    succeeded(status, command).map_err(|error| anyhow!("{error}; its output: {}", log.display()))
}

/// Starts a command with its output in a log.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Child> {
    let output = create(log)?;
    let errors = output.try_clone().with_context(|| format!("cannot write {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot start `{}`", display(command)))
}

/// Runs a command whose output is for people's eyes, and ends it after `limit`.
///
/// # Errors
/// The command cannot be started, fails, takes too long, or was interrupted.
pub(crate) fn run_visible(command: &mut Command, limit: Duration) -> Result<()> {
    let spawned = command.spawn();
    let mut child = spawned.with_context(|| format!("cannot start `{}`", display(command)))?;
    let status = wait(&mut child, Some(limit), || ())
        .with_context(|| format!("`{}` was ended", display(command)))?;
    succeeded(status, command)
}

/// Makes this process the command: its signals, its output and its exit code are the command's.
///
/// # Errors
/// Always, when it returns: the command cannot be started.
pub(crate) fn become_command(command: &mut Command) -> Result<()> {
    if caught() != 0 {
        bail!("interrupted");
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start `{}`", display(command)))
}

/// What a short command prints, when it succeeds.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it, without its environment.
pub(crate) fn display(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn create(log: &Path) -> Result<File> {
    let write = || {
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder)?;
        }
        File::create(log)
    };
    write().with_context(|| format!("cannot write {}", log.display()))
}

fn wait(child: &mut Child, limit: Option<Duration>, mut tick: impl FnMut()) -> Result<ExitStatus> {
    let begun = Instant::now();
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return match limit {
                Some(limit) if asked.is_some() && caught() == 0 => bail!(
                    "no end after {}: it hangs, or this machine is much too slow",
                    clock(limit)
                ),
                _ => Ok(status),
            };
        }
        // A terminal sends Ctrl-C to everybody; the other signals come to xtask alone.
        let alone = !matches!(i32::from(caught()), 0 | libc::SIGINT);
        match asked {
            None if alone || limit.is_some_and(|limit| begun.elapsed() > limit) => {
                asked = Some(Instant::now());
                signal_family(child, libc::SIGTERM);
            }
            Some(when) if when.elapsed() > GRACE => signal_family(child, libc::SIGKILL),
            _ => {}
        }
        tick();
        thread::sleep(PERIOD);
    }
}

/// Ends a child and all that came of it.
pub(crate) fn end(child: &mut Child) {
    signal_family(child, libc::SIGTERM);
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() > GRACE {
            signal_family(child, libc::SIGKILL);
        }
        thread::sleep(PERIOD);
    }
}

/// Sends a signal to a child and to all that came of it: Cargo passes nothing on to the tests that
/// it runs.
fn signal_family(child: &Child, signal: libc::c_int) {
    let Ok(child) = libc::pid_t::try_from(child.id()) else { return };
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let parents: Vec<(libc::pid_t, libc::pid_t)> = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| process_and_parent(&stat))
        .collect();
    for process in family(child, &parents) {
        // SAFETY: `kill` touches no memory. The child is not reaped, so its id is its own.
        unsafe { libc::kill(process, signal) };
    }
}

/// From `/proc/PID/stat` (proc_pid_stat(5)): the name stands in brackets, and may hold any.
fn process_and_parent(stat: &str) -> Option<(libc::pid_t, libc::pid_t)> {
    let process = stat.split(' ').next()?.parse().ok()?;
    let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
    Some((process, parent))
}

/// A process and its descendants, from pairs of (process, parent).
fn family(eldest: libc::pid_t, parents: &[(libc::pid_t, libc::pid_t)]) -> Vec<libc::pid_t> {
    let mut found = vec![eldest];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(child, _)| *child));
        next += 1;
    }
    found
}

fn succeeded(status: ExitStatus, command: &Command) -> Result<()> {
    if caught() != 0 {
        bail!("interrupted");
    }
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// The last lines of a file; none if it cannot be read.
fn tail(log: &Path, lines: usize) -> Vec<String> {
    const BLOCK: u64 = 16 * 1024;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BLOCK)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    last_lines(&String::from_utf8_lossy(&read().unwrap_or_default()), lines)
}

/// Cargo's word that it does something: no help when it has failed.
fn is_progress(line: &str) -> bool {
    let indented = line.starts_with("   ");
    indented
        && ["Compiling ", "Checking ", "Downloaded ", "Downloading ", "Documenting ", "Adding "]
            .iter()
            .any(|start| line.trim_start().starts_with(start))
}

/// The last lines with something in them; of what a carriage return overwrote, the latest.
fn last_lines(text: &str, count: usize) -> Vec<String> {
    let seen = text.lines().map(|line| line.rsplit('\r').next().unwrap_or(line).trim_end());
    let mut lines: Vec<String> = seen.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    lines.split_off(lines.len().saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_displayed_as_one_would_type_it() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "topo-lb", "--", "it's a name", ""]);
        assert_eq!(display(&command), r"cargo test -p topo-lb -- 'it'\''s a name' ''");
    }

    #[test]
    fn the_tail_of_a_log_skips_what_was_overwritten() {
        let text = "first\n\n 10%\r 50%\r100%\nlast  \n";
        assert_eq!(last_lines(text, 2), ["100%", "last"]);
        assert_eq!(last_lines(text, 9), ["first", "100%", "last"]);
        assert!(last_lines("", 3).is_empty());
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
        let folder = std::env::temp_dir().join(format!("xtask-process-{}", std::process::id()));
        let log = folder.join("step.log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo to the log; exit 3"]);
        let error = to_log(&mut command, &log, None, |_| ()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("step.log"), "{text}");
        assert_eq!(tail(&log, 1), ["to the log"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let folder = std::env::temp_dir().join(format!("xtask-limit-{}", std::process::id()));
        let mut command = Command::new("sleep");
        command.arg("60");
        let limit = Some(Duration::from_millis(50));
        let error = to_log(&mut command, &folder.join("sleep.log"), limit, |_| ()).unwrap_err();
        assert!(format!("{error:#}").contains("no end after 0.1 s"), "{error:#}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_signal_reaches_what_a_child_has_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 | sleep 60; true"]);
        let begun = Instant::now();
        let error = run_visible(&mut command, Duration::from_millis(100)).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(format!("{error:#}").contains("was ended: no end after"), "{error:#}");
    }

    #[test]
    fn what_is_ended_is_gone_with_its_children() {
        let folder = std::env::temp_dir().join(format!("xtask-end-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut command = Command::new("sh");
        // All of them hold the pipe open. The last one says that it is there, and sleeps.
        let script = r#"exec 3>"$0"; (sh -c 'echo >&3; exec sleep 60'; true); true"#;
        command.args(["-c", script]).arg(&pipe);
        let mut child = start(&mut command, &folder.join("end.log")).unwrap();
        let mut pipe = File::open(&pipe).unwrap();
        pipe.read_exact(&mut [0]).unwrap();
        let begun = Instant::now();
        end(&mut child);
        assert!(child.try_wait().unwrap().is_some());
        // The pipe ends when the last of them is gone.
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(begun.elapsed() < Duration::from_secs(30));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_family_is_a_process_and_all_its_descendants() {
        let parents = [(2, 1), (5, 2), (3, 1), (7, 5), (8, 3)];
        assert_eq!(family(2, &parents), [2, 5, 7]);
        assert_eq!(process_and_parent("42 (a) b) S 7 42 42 0"), Some((42, 7)));
    }
}
