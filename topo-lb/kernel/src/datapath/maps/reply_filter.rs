//! Marks the endpoints that can send replies, so that the tc programs look up only their packets.
//!
//! The programs mark the endpoint of each connection that they open. This thread marks the
//! endpoints of connections from before the programs were attached; until it has, the programs look
//! up every packet. It repeats this every hour, because nothing else removes the marks of closed
//! connections.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Map, MapError};
use memmap2::{MmapOptions, MmapRaw};
use topo_lb_common::connection::{
    Connection4, Connection6, DIRECT, HAIRPIN, REPLY, Tuple4, Tuple6, lifetime,
};
use topo_lb_common::maps;
use topo_lb_common::reply_filter::{
    ENTRIES, MARKS, ReplyFilterEntry, ReplyFilterPlace, direct_place, folded, place,
};
use tracing::{info, warn};

use super::connections::now;
use super::error::StoreError;
use super::pinned::{Hash, another, entries, failed};
use crate::datapath::host::grace;

/// Pause between two passes.
const PERIOD: Duration = Duration::from_secs(3_600);
/// Pause after a failed pass.
const PAUSE: Duration = Duration::from_secs(30);

/// Keeps the marks up to date until it is dropped.
#[derive(Debug)]
pub(crate) struct ReplyFilter {
    _stop: Sender<()>,
}

impl ReplyFilter {
    /// Starts the thread. All attached programs must use `marks` and the connection tables that
    /// `table` finds by name.
    ///
    /// # Errors
    /// A map is missing or has another type, or the thread cannot start. The programs then look up
    /// every packet.
    pub(crate) fn start<'a>(
        marks: &Map,
        table: impl Fn(&str) -> Option<&'a Map>,
    ) -> Result<Self, StoreError> {
        let mut work = Work {
            lines: Lines::of(marks).map_err(failed(maps::REPLY_FILTER, "read"))?,
            four: [another(&table, maps::HALF_OPEN4)?, another(&table, maps::CONNECTIONS4)?],
            six: [another(&table, maps::HALF_OPEN6)?, another(&table, maps::CONNECTIONS6)?],
        };
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name("reply_filter".to_owned())
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
            .map_err(|error| failed(maps::REPLY_FILTER, "mark")(MapError::IoError(error)))?;
        Ok(Self { _stop: stop })
    }
}

/// An entry of `reply_filter`, in memory that programs write, too.
#[repr(C, align(4))]
struct Line {
    whole: AtomicU32,
    marks: [AtomicU8; MARKS],
}

const _: () = assert!(size_of::<Line>() == size_of::<ReplyFilterEntry>());

/// The entries of `reply_filter`, mapped into this process.
struct Lines(MmapRaw);

impl Lines {
    const BYTES: usize = ENTRIES as usize * size_of::<Line>();

    fn of(map: &Map) -> Result<Self, MapError> {
        let Map::Array(data) = map else {
            return Err(MapError::IoError(io::ErrorKind::InvalidData.into()));
        };
        let memory = MmapOptions::new().len(Self::BYTES).map_raw(&data.fd().as_fd());
        memory.map(Self).map_err(MapError::IoError)
    }

    fn all(&self) -> &[Line] {
        // SAFETY: the mapping has this many entries and begins at a page; any bytes are a `Line`, and
        // all its fields are atomic.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), ENTRIES as usize) }
    }

    /// Sets whether programs may rely on the marks.
    fn set_whole(&self, whole: bool) {
        for line in self.all() {
            line.whole.store(whole.into(), Ordering::Release);
        }
    }

    fn clear(&self) {
        for mark in self.all().iter().flat_map(|line| &line.marks) {
            mark.store(0, Ordering::Relaxed);
        }
    }

    fn mark(&self, ReplyFilterPlace { entry, mark }: ReplyFilterPlace) {
        self.all()[entry as usize].marks[mark as usize].store(1, Ordering::Relaxed);
    }
}

struct Work {
    lines: Lines,
    /// Half-open and established connections. A connection moves from the first table to the second
    /// one: reading them in this order misses none.
    four: [Hash<Tuple4, Connection4>; 2],
    six: [Hash<Tuple6, Connection6>; 2],
}

impl Work {
    /// Rebuilds all marks.
    ///
    /// A program writes a connection's entry before its mark. So a connection opened meanwhile is
    /// either marked after the old marks were cleared, or its entry exists when the table is read.
    fn learn(&mut self) -> Result<(), StoreError> {
        let began = Instant::now();
        self.lines.set_whole(false);
        // Now no program relies on the marks, and no replaced program, which sets none, runs.
        grace::wait().map_err(StoreError::Grace)?;
        self.lines.clear();
        // Every program that set a mark before has its entry in the table, visible to all CPUs.
        grace::wait().map_err(StoreError::Grace)?;
        let now = now();
        // Twice the lifetime: one direction's packets refresh the other's entry a little late.
        let is_over = |last_used: u64, protocol, state| {
            now.saturating_sub(last_used) > 2 * lifetime(protocol, state)
        };
        // Of an endpoint that is its own client, every packet is looked up.
        let is_reply = |kind| kind & (REPLY | HAIRPIN) == REPLY;
        let mut places = Vec::new();
        let mut add = |address, port, kind| {
            places.push(place(address, port));
            if kind & DIRECT != 0 {
                places.push(direct_place(address, port));
            }
        };
        for pair in self.four.iter().flat_map(|table| entries(table, maps::CONNECTIONS4)) {
            let (key, value) = pair?;
            if is_reply(value.kind) && !is_over(value.last_used, key.protocol, value.state) {
                add(u32::from_ne_bytes(key.source), key.source_port, value.kind);
            }
        }
        for pair in self.six.iter().flat_map(|table| entries(table, maps::CONNECTIONS6)) {
            let (key, value) = pair?;
            if is_reply(value.kind) && !is_over(value.last_used, key.protocol, value.state) {
                add(folded(bytemuck::cast(key.source)), key.source_port, value.kind);
            }
        }
        places.sort_unstable();
        places.dedup();
        for &place in &places {
            self.lines.mark(place);
        }
        // A program may have read a place before its mark; it must not see complete marks later.
        grace::wait().map_err(StoreError::Grace)?;
        self.lines.set_whole(true);
        info!(marks = places.len(), took = ?began.elapsed(), "tc knows which endpoints may answer");
        Ok(())
    }
}
