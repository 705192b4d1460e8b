//! Writes lines on a thread of its own: a reader that does not read holds up no end of the command.

use std::io::{self, Write};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc::{Sender, channel};
use tokio::time::sleep;

/// Most lines that wait for the reader.
const WAITING: usize = 1_024;
/// Between two looks whether all is written.
const PAUSE: Duration = Duration::from_millis(5);

/// Where lines go.
pub(super) struct Output {
    lines: Sender<String>,
    writer: JoinHandle<io::Result<()>>,
}

impl Output {
    /// Starts the thread.
    pub(super) fn start(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, mut waiting) = channel::<String>(WAITING);
        let write = move || {
            while let Some(line) = waiting.blocking_recv() {
                writeln!(out, "{line}")?;
                if waiting.is_empty() {
                    out.flush()?;
                }
            }
            Ok(())
        };
        let writer = thread::Builder::new().name("output".into()).spawn(write)?;
        Ok(Self { lines, writer })
    }

    /// Hands a line over. Waits while too many are before it. Returns whether somebody still reads.
    pub(super) async fn line(&self, line: String) -> bool {
        self.lines.send(line).await.is_ok()
    }

    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.lines.is_closed()
    }

    /// Waits until all is written. Nobody may read any more, as after `topo-lb trace | head`.
    pub(super) async fn end(self) -> io::Result<()> {
        drop(self.lines);
        while !self.writer.is_finished() {
            sleep(PAUSE).await;
        }
        match self.writer.join() {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}
