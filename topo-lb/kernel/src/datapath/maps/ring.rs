//! A ring buffer in which programs tell the agent something.

use std::io;

use aya::maps::{Map, MapData, RingBuf};
use tokio::io::unix::AsyncFd;

use crate::datapath::error::causes;

/// A ring buffer with elements that are read as `E`.
pub struct Ring<E> {
    fd: AsyncFd<RingBuf<MapData>>,
    /// Most elements that are taken at once: what fits into it.
    batch: usize,
    /// `None` if an agent of another version left the element.
    read: fn(&[u8]) -> Option<E>,
}

impl<E> Ring<E> {
    /// Opens it. Needs a runtime.
    pub(crate) fn new(
        map: Map,
        batch: usize,
        read: fn(&[u8]) -> Option<E>,
    ) -> Result<Self, String> {
        let ring = RingBuf::try_from(map).map_err(|error| causes(&error))?;
        // SAFETY: the ring owns its file descriptor, and nothing replaces either.
        let registered = unsafe { AsyncFd::register(ring) };
        Ok(Self { fd: registered.map_err(|error| error.to_string())?, batch, read })
    }

    /// Takes what is there now; programs may add more meanwhile.
    pub fn take(&mut self) -> Vec<E> {
        let mut all = Vec::new();
        for _ in 0..self.batch {
            let Some(bytes) = self.fd.get_mut().next() else { break };
            all.extend((self.read)(&bytes));
        }
        all
    }

    /// Waits until a program wakes the agent, and takes what is there. Nothing is lost if the caller stops to wait.
    ///
    /// # Errors
    /// The ring buffer cannot be polled.
    pub async fn next(&mut self) -> io::Result<Vec<E>> {
        self.fd.readable_mut().await?.clear_ready();
        Ok(self.take())
    }
}
