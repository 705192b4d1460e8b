//! Runs suites of the lab in lanes, with the output of each in a log.
//!
//! A suite mostly waits for agents and servers. Its names begin with its process id: namespaces,
//! cgroups, pins and folders are its own. The tests of a suite run one at a time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fs_err as fs;

use crate::process::{caught, to_log};
use crate::progress::{GREEN, RED, clock, line, paint};
use crate::summary::unchecked;

/// The limit for a suite: several times what the longest needs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A suite: its name, the command that runs it, and the log of its output.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) command: Command,
    pub(crate) log: PathBuf,
}

/// Starts the suites in this order, so many at once. Prints how each ended, and the output of those
/// that failed. Returns what they say that they could not check.
///
/// # Errors
/// Suites have failed: the error names them, and their tests with what these say. The others have run
/// all the same.
pub(crate) fn run(suites: Vec<Suite>, lanes: usize) -> Result<Option<String>> {
    let waiting = Mutex::new(VecDeque::from(suites));
    let passed = Mutex::new(Vec::new());
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(mut suite) = next(&waiting) {
                    let ended = if passes(&mut suite) { &passed } else { &failed };
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push(suite);
                }
            });
        }
    });
    if caught() != 0 {
        bail!("interrupted");
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        let passed = passed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let outputs: Vec<String> = passed.iter().map(output).collect();
        return Ok(unchecked(outputs.iter().map(String::as_str)));
    }
    let names: Vec<_> = failed.iter().map(|suite| suite.name.as_str()).collect();
    let reasons = failed.iter().flat_map(|suite| reasons(&output(suite)));
    let reasons: String = reasons.map(|reason| format!("\n  {reason}")).collect();
    bail!("failed: {}{reasons}", names.join(", "))
}

/// What a suite has printed.
fn output(suite: &Suite) -> String {
    fs::read_to_string(&suite.log).unwrap_or_default()
}

/// The failed tests in what a suite has printed, each with the first line of its error. Logs of
/// agents and backtraces are many pages.
fn reasons(output: &str) -> Vec<String> {
    const MOST: usize = 400;
    let (mut reasons, mut test) = (Vec::new(), None);
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        let begun = line.strip_prefix("---- ").and_then(|it| it.strip_suffix(" stdout ----"));
        test = begun.or(test);
        let error = match line.strip_prefix("Error: ") {
            None if line.starts_with("thread '") && line.contains(" panicked at ") => lines.next(),
            error => error,
        };
        if let Some(error) = error
            && let Some(name) = test.take()
        {
            reasons.push(format!("{name}: {}", error.chars().take(MOST).collect::<String>()));
        }
    }
    reasons
}

/// The next suite to run: none after a signal.
fn next(waiting: &Mutex<VecDeque<Suite>>) -> Option<Suite> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if caught() == 0 { waiting.pop_front() } else { None }
}

/// Runs a suite, and prints how it ended.
fn passes(suite: &mut Suite) -> bool {
    let begun = Instant::now();
    let result = to_log(&mut suite.command, &suite.log, Some(LIMIT), |_| ());
    let (name, time) = (&suite.name, clock(begun.elapsed()));
    match &result {
        Ok(()) => line(&format!("{} {name}  {time}", paint(GREEN, "✓"))),
        Err(error) => {
            let output = output(suite);
            // One call: the lines of two suites do not mix.
            line(&format!("{output}{} {name}  failed after {time}: {error}", paint(RED, "✗")));
        }
    }
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(folder: &std::path::Path, scripts: &[(&str, &str)]) -> Vec<Suite> {
        let suite = |(name, script): &(&str, &str)| {
            let mut command = Command::new("sh");
            command.args(["-ec", script]).current_dir(folder);
            Suite { name: (*name).to_owned(), command, log: folder.join(name) }
        };
        scripts.iter().map(suite).collect()
    }

    #[test]
    fn two_suites_run_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Each waits until the other has opened the pipe.
        run(suites(folder.path(), &[("one", "echo met > pipe"), ("two", "cat pipe")]), 2).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("two")).unwrap(), "met\n");
    }

    #[test]
    fn a_failure_is_named_and_the_other_suites_run() {
        let folder = tempfile::tempdir().unwrap();
        let scripts = [("a", "exit 1"), ("b", "true"), ("c", "touch ran"), ("d", "exit 1")];
        let error = run(suites(folder.path(), &scripts), 1).unwrap_err().to_string();
        let names = error.strip_prefix("failed: ").unwrap().split(", ");
        assert_eq!(names.collect::<std::collections::BTreeSet<_>>(), ["a", "d"].into());
        assert!(folder.path().join("ran").exists());
    }

    #[test]
    fn a_failed_suite_says_which_tests_failed_and_why() {
        let folder = tempfile::tempdir().unwrap();
        // As libtest prints it: an error, a panic that is followed by an error, and one alone.
        let output = "\
test a ... FAILED

failures:

---- a stdout ----
--- /tmp/agent.log
a line of a log
Error: six of seven

Stack backtrace:
   0: anyhow::error::<impl anyhow::Error>::msg
---- b stdout ----

thread 'b' (7) panicked at tests/b.rs:3:5:
two lines
the second
Error: later

---- c::d stdout ----
thread 'c::d' panicked at tests/c.rs:1:1:
gone

failures:
    a
";
        fs::write(folder.path().join("printed"), output).unwrap();
        let script = "cat printed; exit 1";
        let error = run(suites(folder.path(), &[("suite", script)]), 1).unwrap_err().to_string();
        assert_eq!(error, "failed: suite\n  a: six of seven\n  b: two lines\n  c::d: gone");
    }
}
