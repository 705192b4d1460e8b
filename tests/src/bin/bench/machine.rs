//! The machine of the measurement.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// Of a bench that is compiled without optimization.
const SLOW: &str = "not optimized";

/// The machine, as far as it affects the figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// `model name` of /proc/cpuinfo.
    pub(crate) processor: String,
    pub(crate) cores: usize,
    /// GiB.
    pub(crate) memory: f64,
    pub(crate) kernel: String,
    /// The load average of the last minute before the run.
    pub(crate) load: f64,
    /// `quick` or `full`, and whether the bench is compiled without optimization.
    pub(crate) run: String,
}

impl Machine {
    pub(crate) fn describe(run: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kibibytes = field(&read("/proc/meminfo"), "MemTotal");
        let kibibytes = kibibytes.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: thread::available_parallelism().map_or(0, Into::into),
            memory: (kibibytes.unwrap_or_default() / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|it| it.parse().ok())
                .unwrap_or(0.0),
            run: if cfg!(debug_assertions) { format!("{run}, {SLOW}") } else { run.into() },
        }
    }

    /// The command of the run.
    pub(crate) fn command(&self) -> &'static str {
        if self.run.starts_with("quick") {
            "cargo xtask bench --quick"
        } else {
            "cargo xtask bench"
        }
    }

    pub(crate) fn sentence(&self) -> String {
        let slow = if self.run.ends_with(SLOW) { "; compiled without optimization" } else { "" };
        format!(
            "{}, {} cores, {} GiB, {}, load {} before the run{slow}.",
            self.processor, self.cores, self.memory, self.kernel, self.load
        )
    }
}
