//! Tells the tc programs which endpoints have connections to answer, so that they look no other
//! packet up on its way out.
//!
//! The programs mark the endpoint of each connection that they open. What was opened before these
//! programs came is marked here, from the connection table; until that is done, the programs look
//! every packet up. It is done again from time to time, because nothing else takes away the marks of
//! endpoints whose connections are over. It goes on beside the work.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use topo_lb_common::answerers::{PLACES, WHOLE, folded, place};
use topo_lb_common::connection::{Connection4, Connection6, TO_CLIENT, Tuple4, Tuple6, lifetime};
use topo_lb_common::maps;
use tracing::{info, warn};

use super::bpf::{self, Hash, Raw, failed};
use super::connections::now;
use super::store::StoreError;

/// Between one time and the next.
const PERIOD: Duration = Duration::from_secs(3_600);
/// The same after a failure.
const PAUSE: Duration = Duration::from_secs(30);

/// The marks, kept true for as long as this is held.
#[derive(Debug)]
pub(super) struct Answerers {
    _stop: Sender<()>,
}

impl Answerers {
    /// Begins, once all attached programs use `marks` and these tables of connections.
    ///
    /// # Errors
    /// A map is not what it should be, or there is no thread to be had. The programs then look every
    /// packet up.
    pub(super) fn keep(marks: Map, four: &Map, six: &Map) -> Result<Self, StoreError> {
        let mut work = Work {
            marks: Array::try_from(marks).map_err(failed(maps::ANSWERERS, "read"))?,
            four: another(four).map_err(failed(maps::CONNECTIONS4, "read"))?,
            six: another(six).map_err(failed(maps::CONNECTIONS6, "read"))?,
        };
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name("answerers".to_owned())
            .spawn(move || {
                loop {
                    let pause = match work.learn() {
                        Ok(()) => PERIOD,
                        Err(error) => {
                            warn!("{error}; tc looks up every packet that goes out");
                            PAUSE
                        }
                    };
                    if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(|error| failed(maps::ANSWERERS, "mark")(MapError::IoError(error)))?;
        Ok(Self { _stop: stop })
    }
}

/// A handle of its own to a table of connections.
fn another<K: bytemuck::Pod, V: bytemuck::Pod>(map: &Map) -> Result<Hash<K, V>, MapError> {
    let Map::LruHashMap(data) = map else {
        return Err(MapError::IoError(io::ErrorKind::InvalidData.into()));
    };
    let fd = data.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
    HashMap::try_from(Map::LruHashMap(MapData::from_fd(fd)?))
}

struct Work {
    marks: Array<MapData, u32>,
    four: Hash<Tuple4, Connection4>,
    six: Hash<Tuple6, Connection6>,
}

impl Work {
    /// Makes all marks anew.
    ///
    /// A connection that is opened meanwhile has its entry before its mark: either the mark comes
    /// after the old ones were taken away, or the entry is there when the entries are read.
    fn learn(&mut self) -> Result<(), StoreError> {
        let began = Instant::now();
        self.set(WHOLE, 0)?;
        // No program relies on them any more; and none that was replaced runs, which marks nothing.
        bpf::grace()?;
        for place in 0..PLACES {
            if self.marks.get(&place, 0).map_err(failed(maps::ANSWERERS, "read"))? != 0 {
                self.set(place, 0)?;
            }
        }
        // Whoever has set one of those has its entry in the table now, for every CPU to see.
        bpf::grace()?;
        let now = now();
        // Long over: what passes one way keeps the other way's entry, a little late.
        let is_over = |last_used: u64, protocol, state| {
            now.saturating_sub(last_used) > 2 * lifetime(protocol, state)
        };
        let mut places = Vec::new();
        for pair in self.four.iter() {
            let (Raw(key), Raw(value)) = pair.map_err(failed(maps::CONNECTIONS4, "read"))?;
            if key.way == TO_CLIENT && !is_over(value.last_used, key.protocol, value.state) {
                places.push(place(u32::from_ne_bytes(key.source), key.source_port));
            }
        }
        for pair in self.six.iter() {
            let (Raw(key), Raw(value)) = pair.map_err(failed(maps::CONNECTIONS6, "read"))?;
            if key.way == TO_CLIENT && !is_over(value.last_used, key.protocol, value.state) {
                places.push(place(folded(bytemuck::cast(key.source)), key.source_port));
            }
        }
        places.sort_unstable();
        places.dedup();
        for &place in &places {
            self.set(place, 1)?;
        }
        // Nobody is left who has seen a place without its mark, and might yet see that they are whole.
        bpf::grace()?;
        self.set(WHOLE, 1)?;
        info!(marks = places.len(), took = ?began.elapsed(), "tc knows which endpoints may answer");
        Ok(())
    }

    fn set(&mut self, place: u32, value: u32) -> Result<(), StoreError> {
        self.marks.set(place, value, 0).map_err(failed(maps::ANSWERERS, "write"))
    }
}
