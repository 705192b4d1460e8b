//! Checks twice a second whether foreign programs run before ours, and logs begin and end.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use topo_lb_core::once::Once;
use topo_lb_kernel::datapath::hook::ProgramIds;
use topo_lb_kernel::datapath::inspect::effective::{self, Watch};
use topo_lb_kernel::datapath::inspect::in_front;
use topo_lb_kernel::datapath::inspect::overridden::{self, Precedence};
use topo_lb_kernel::datapath::inspect::tolerated::{self, Tolerated};

/// Interval between looks. Uneven, to detect programs that are attached and detached periodically.
const INTERVAL: Duration = Duration::from_millis(470);
/// Overrides count as ended only after this time without any.
const HOLD: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// Foreign programs run before ours; none did.
    Begins,
    /// They are not the same as before.
    Goes,
    /// There were none for [`HOLD`].
    Ends,
}

/// What was logged. Pure.
#[derive(Debug)]
struct Findings<T> {
    found: Vec<T>,
    /// When a look last found some.
    last: Option<Instant>,
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { found: Vec::new(), last: None }
    }
}

impl<T: Clone + PartialEq> Findings<T> {
    /// Takes in the findings of a look. Returns what to log.
    fn observe(&mut self, found: &[T], now: Instant) -> Option<Change> {
        if found.is_empty() {
            let last = self.last?;
            if now.duration_since(last) < HOLD {
                return None;
            }
            *self = Self::default();
            return Some(Change::Ends);
        }
        let begins = self.last.replace(now).is_none();
        let differs = self.found != found;
        self.found = found.to_vec();
        match (begins, differs) {
            (true, _) => Some(Change::Begins),
            (false, true) => Some(Change::Goes),
            (false, false) => None,
        }
    }
}

/// Looks regularly, on a thread of its own. Returns after the first look. `pin_dir` has the pins of
/// programs on devices.
///
/// # Errors
/// No thread can be started.
pub(super) fn watch(
    root: &Path,
    pin_dir: &Path,
    tolerated: &[Tolerated],
    ours: ProgramIds,
    tell: impl Fn(&Precedence) + Send + 'static,
) -> io::Result<()> {
    if let Some(sentence) = tolerated::without_effect(tolerated)
        && !effective::tells_names()
    {
        warn!("{sentence}");
    }
    let mut watch = Watch::new(root.to_owned(), tolerated.to_vec());
    let (mut on_sockets, mut on_devices) = (Findings::default(), Findings::default());
    let mut unsure = Once::new();
    let (root, pin_dir, tolerated) = (root.to_owned(), pin_dir.to_owned(), tolerated.to_vec());
    let mut look = move || {
        // What one of them does not say must not hide what the other one does.
        let devices = in_front::look(&pin_dir, &tolerated);
        let (devices, error) = match devices {
            Ok(devices) => (devices, None),
            Err(error) => (on_devices.found.clone(), Some(error)),
        };
        match watch.look(&ours) {
            Ok(sockets) => {
                note(&mut unsure, error);
                let now = Instant::now();
                if let Some(change) = on_sockets.observe(&sockets.overrides, now) {
                    let sentence = overridden::sentence(&on_sockets.found);
                    say(
                        &change,
                        sentence,
                        || overridden::remedy(&root, &on_sockets.found),
                        SOCKETS,
                    );
                }
                if let Some(change) = on_devices.observe(&devices, now) {
                    let sentence = in_front::sentence(&on_devices.found);
                    say(&change, sentence, in_front::remedy, DEVICES);
                }
                tell(&Precedence {
                    overrides: on_sockets.found.clone(),
                    unasked: sockets.unasked,
                    in_front: on_devices.found.clone(),
                });
            }
            Err(error) => note(&mut unsure, Some(error)),
        }
    };
    look();
    let thread = thread::Builder::new().name("precedence".to_owned());
    thread.spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            look();
        }
    })?;
    Ok(())
}

/// Logs the first of errors in a row.
fn note(unsure: &mut Once, error: Option<io::Error>) {
    match error {
        Some(error) if unsure.begins(()) => {
            warn!("the kernel does not say which programs run before topo-lb's: {error}");
        }
        Some(_) => {}
        None => unsure.clear(),
    }
}

const SOCKETS: &str = "sockets";
const DEVICES: &str = "devices of clients outside";

fn say(change: &Change, sentence: Option<String>, remedy: impl Fn() -> String, of: &str) {
    let sentence = sentence.unwrap_or_default();
    match change {
        Change::Begins => warn!("{sentence}; {}", remedy()),
        Change::Goes => debug!("{sentence}"),
        Change::Ends => info!("no program of others runs before topo-lb's of {of} any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_kernel::datapath::hook::Hook;
    use topo_lb_kernel::datapath::inspect::overridden::Override;

    fn one(program: u32) -> Vec<Override> {
        let (hook, cgroup) = (Hook::Connect4, "/sys/fs/cgroup".into());
        vec![Override { hook, cgroup, above: None, program, name: None }]
    }

    #[test]
    fn it_is_said_once_when_it_begins_and_once_when_it_ends() {
        let (mut told, start) = (Findings::default(), Instant::now());
        assert_eq!(told.observe(&[], start), None);
        assert_eq!(told.observe(&one(1), start), Some(Change::Begins));
        assert_eq!(told.observe(&one(1), start + HOLD * 9), None);
        assert_eq!(told.observe(&[], start + HOLD * 9), None);
        assert_eq!(told.found, one(1));
        assert_eq!(told.observe(&[], start + HOLD * 10), Some(Change::Ends));
        assert_eq!(told.found, []);
        assert_eq!(told.observe(&[], start + HOLD * 99), None);
        assert_eq!(told.observe(&one(2), start + HOLD * 99), Some(Change::Begins));
    }

    #[test]
    fn programs_that_come_and_go_are_one_thing_to_say() {
        let (mut told, start) = (Findings::default(), Instant::now());
        assert_eq!(told.observe(&one(1), start), Some(Change::Begins));
        for look in 1..1000 {
            let found = if look % 2 == 0 { one(look) } else { Vec::new() };
            let said = told.observe(&found, start + INTERVAL * look);
            assert!(matches!(said, None | Some(Change::Goes)), "look {look}: {said:?}");
        }
    }

    #[test]
    fn a_program_that_is_attached_every_other_100_ms_is_met() {
        let parity = |look: u32| (INTERVAL * look).as_millis() / 100 % 2;
        let all: std::collections::BTreeSet<_> = (0..4).map(parity).collect();
        assert_eq!(all.len(), 2, "looks are in step with the program");
    }
}
