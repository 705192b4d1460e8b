//! What programs with the feature `log` say, for the agent's log.

use std::thread;
use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;
use tracing::{debug, info, warn};

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Passes lines of the programs to the agent's log.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Debug {
            debug!("programs: {}", record.args());
        } else {
            info!("programs: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Reads from a thread of its own what the programs say, as long as this process lives.
pub(crate) fn start(ebpf: &mut Ebpf) {
    let mut logger = match EbpfLogger::init_with_logger(ebpf, Lines) {
        Ok(logger) => logger,
        Err(error) => return warn!("the programs say nothing: {error}"),
    };
    let read = move || loop {
        logger.flush();
        thread::sleep(LOOK);
    };
    if let Err(error) = thread::Builder::new().name("log".into()).spawn(read) {
        warn!("what the programs say is not read: {error}");
    }
}
