//! Tells the tc programs which endpoints have connections to answer, so that they look no other
//! packet up on its way out.
//!
//! The programs mark the endpoint of each connection that they open. What was opened before these
//! programs came is marked here, from the connection table; until that is done, the programs look
//! every packet up. It is done again from time to time, because nothing else takes away the marks of
//! endpoints that are gone. It goes on beside the work.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use topo_lb_common::answerers::{PLACES, WHOLE, place};
use topo_lb_common::connection::{Connection4, Connection6, TO_CLIENT, Tuple4, Tuple6};
use topo_lb_common::maps;
use tracing::{info, warn};

use super::bpf::{self, Raw, ReadError, failed};

/// Between one time and the next.
const PERIOD: Duration = Duration::from_secs(3_600);

/// The marks, kept true for as long as this is held.
#[derive(Debug)]
pub(super) struct Answerers {
    _stop: Sender<()>,
}

impl Answerers {
    /// Begins, once all attached programs use this map. `pin_dir` is where the connection tables are
    /// pinned.
    ///
    /// # Errors
    /// The map is not what it should be, or there is no thread to be had. The programs then look
    /// every packet up.
    pub(super) fn keep(map: Map, pin_dir: &Path) -> Result<Self, ReadError> {
        let marks = Array::try_from(map).map_err(failed(maps::ANSWERERS, "read"))?;
        let (stop, stopped) = mpsc::channel();
        let mut work = Work { marks, pin_dir: pin_dir.to_owned() };
        let unable = |error| failed(maps::ANSWERERS, "mark")(aya::maps::MapError::IoError(error));
        thread::Builder::new()
            .name("answerers".to_owned())
            .spawn(move || {
                loop {
                    if let Err(error) = work.learn() {
                        warn!("{error}; tc looks up every packet that goes out");
                    }
                    if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(unable)?;
        Ok(Self { _stop: stop })
    }
}

struct Work {
    marks: Array<MapData, u32>,
    pin_dir: PathBuf,
}

impl Work {
    /// Makes all marks anew.
    ///
    /// A connection that is opened meanwhile has its entry before its mark: either the mark comes
    /// after the old ones were taken away, or the entry is there when the entries are read.
    fn learn(&mut self) -> Result<(), ReadError> {
        let began = Instant::now();
        self.set(WHOLE, 0)?;
        // No program relies on them any more; and none that was replaced runs, which marks nothing.
        bpf::grace()?;
        for place in 0..PLACES {
            if self.marks.get(&place, 0).map_err(failed(maps::ANSWERERS, "read"))? != 0 {
                self.set(place, 0)?;
            }
        }
        let mut marked = 0;
        macro_rules! mark {
            ($tuple:ty, $connection:ty, $map:expr) => {
                for key in bpf::lru_hash::<$tuple, $connection>(&self.pin_dir, $map)?.keys() {
                    let Raw(key) = key.map_err(failed($map, "read"))?;
                    if key.way == TO_CLIENT {
                        self.set(place(folded(&key.source), key.source_port), 1)?;
                        marked += 1;
                    }
                }
            };
        }
        mark!(Tuple4, Connection4, maps::CONNECTIONS4);
        mark!(Tuple6, Connection6, maps::CONNECTIONS6);
        self.set(WHOLE, 1)?;
        info!(connections = marked, took = ?began.elapsed(), "tc knows which endpoints may answer");
        Ok(())
    }

    fn set(&mut self, place: u32, value: u32) -> Result<(), ReadError> {
        Ok(self.marks.set(place, value, 0).map_err(failed(maps::ANSWERERS, "write"))?)
    }
}

/// An address as one word, as the programs have it.
fn folded(address: &[u8]) -> u32 {
    let words = address.as_chunks().0;
    words.iter().fold(0, |sum, word| sum ^ u32::from_ne_bytes(*word))
}
