//! Asks the agent of this host, over its Unix socket, whether it is alive or ready.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use topo_lb_core::flag::PROBE_SOCKET;

/// A healthy agent answers within milliseconds. Less than the kubelet's limit in deploy/, so that
/// the error is printed; kubelets before 1.20 have no limit.
const PATIENCE: Duration = Duration::from_secs(4);
/// Most bytes of an answer; none has as many.
const LONGEST: u64 = 64 * 1024;

/// The probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", prefix = "/")]
pub enum Probe {
    /// Whether it makes progress.
    Livez,
    /// Whether it serves.
    Readyz,
}

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the probe succeeded.
    pub ok: bool,
    /// Its sentence.
    pub sentence: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process listens on the socket.
    #[error("no agent listens on {}: it does not run, or has another {PROBE_SOCKET}", .0.display())]
    Nobody(PathBuf),
    /// The agent does not answer in time.
    #[error("the agent did not answer within {} s", PATIENCE.as_secs())]
    Late,
    /// The socket cannot be used.
    #[error("cannot ask the agent over {}: {}", .0.display(), .1)]
    Broken(PathBuf, io::Error),
    /// The answer is no HTTP.
    #[error("what listens on {} is no agent", .0.display())]
    NoAgent(PathBuf),
}

/// Asks the agent.
///
/// # Errors
/// There is no answer.
pub async fn ask(socket: &Path, probe: Probe) -> Result<Answer, ProbeError> {
    let text = match timeout(PATIENCE, exchange(socket, probe.into())).await {
        Err(_) => return Err(ProbeError::Late),
        Ok(Err(error)) => {
            return Err(match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    ProbeError::Nobody(socket.to_owned())
                }
                _ => ProbeError::Broken(socket.to_owned(), error),
            });
        }
        Ok(Ok(text)) => text,
    };
    let answer = || {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
        Some(Answer { ok: status == "200", sentence: body.trim_end().to_owned() })
    };
    answer().ok_or_else(|| ProbeError::NoAgent(socket.to_owned()))
}

/// Uses HTTP/1.0: the end of the connection ends the answer.
async fn exchange(socket: &Path, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
