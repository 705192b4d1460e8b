//! What the command prints: results to standard output, logs to standard error.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;
use serde::Serialize;
use topo_lb::cli::{LogFormat, Output};

/// Prints a result, for people or for scripts.
pub(crate) fn print(
    output: Output,
    value: &impl Serialize,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(value)?,
        Output::Table => table(),
    };
    write(&text)
}

/// Writes a text and the end of its line to standard output.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    put(&format!("{}\n", text.trim_end()))
}

/// Writes a text as it is to standard output.
pub(crate) fn put(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `topo-lb explain | head` is no error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the result"),
    }
}

/// Colours are for a terminal, unless NO_COLOR is set (https://no-color.org).
pub(crate) fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Sends logs to standard error from now on.
pub(crate) fn start_logging(format: LogFormat) {
    // `kube_client` logs each failed attempt; the agent logs each problem once.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "info,kube_client=off".into());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            logs.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
        }
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}
