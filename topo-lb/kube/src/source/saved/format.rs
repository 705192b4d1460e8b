//! The saved state as text: a header, one object per line, and a checksum.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::entry::{Entry, SliceEntry};
use crate::source::kube::Identity;
use topo_lb_core::cluster::{Change, ClusterTopologyPolicy, Node, State, Update};

/// The version that is written. Raise it for a change here, in [`entry`](super::entry) or in the
/// serialization of `cluster` types, unless older agents can ignore the change.
pub(super) const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// First, because every version has it.
    topo_lb_state: u32,
    /// When the state was current, in milliseconds since 1970.
    as_of: u64,
    /// The cluster of the objects.
    pub(super) cluster: Identity,
}

/// The part of the header that all versions share.
#[derive(Deserialize)]
struct AnyHeader {
    topo_lb_state: u32,
}

/// The last line: CRC-32 (IEEE 802.3) of all bytes before it.
#[derive(Serialize, Deserialize)]
struct Trailer {
    crc32: u32,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatError {
    #[error("it is of format version {0}, and this agent reads version {VERSION}")]
    Version(u32),
    #[error("it is damaged: {0}")]
    Damaged(String),
}

impl Header {
    fn new(cluster: Identity, as_of: SystemTime) -> Self {
        let since = as_of.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            topo_lb_state: VERSION,
            as_of: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            cluster,
        }
    }

    pub(super) fn as_of(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.as_of)).unwrap_or(UNIX_EPOCH)
    }
}

/// Computes the CRC-32 of what is written through it.
struct Checked<W> {
    inner: W,
    crc: crc32fast::Hasher,
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes `state` object by object, so that memory use does not grow with it.
///
/// # Errors
/// Those of `out`.
pub(super) fn write(
    state: &State,
    cluster: Identity,
    as_of: SystemTime,
    out: impl Write,
) -> io::Result<()> {
    let mut out = Checked { inner: out, crc: crc32fast::Hasher::new() };
    line(&mut out, &Header::new(cluster, as_of))?;
    write_objects(state, &mut out)?;
    let crc32 = out.crc.clone().finalize();
    line(&mut out, &Trailer { crc32 })
}

/// A CRC-32: equal for equal states, and for others with a probability of only 2⁻³².
pub(super) fn digest(state: &State) -> u32 {
    let mut out = Checked { inner: io::sink(), crc: crc32fast::Hasher::new() };
    // A sink cannot fail.
    let _ = write_objects(state, &mut out);
    out.crc.finalize()
}

fn write_objects(state: &State, out: &mut impl Write) -> io::Result<()> {
    for (name, labels) in state.nodes() {
        line(out, &Entry::Node(Node { name: name.into(), labels: labels.clone() }))?;
    }
    for region in state.regions() {
        line(out, &Entry::Region(region))?;
    }
    for namespace in state.namespaces() {
        line(out, &Entry::Namespace(namespace.clone()))?;
    }
    for policy in state.policies() {
        line(out, &Entry::Policy(policy.clone()))?;
    }
    for id in state.services() {
        if let Some(service) = state.service(id) {
            line(out, &Entry::Service(service.clone()))?;
        }
    }
    let mut slices: Vec<_> = state.all_slices().collect();
    slices.sort_unstable_by_key(|(id, _)| *id);
    for (id, endpoints) in slices {
        line(out, &Entry::Slice(SliceEntry::of(id, endpoints)))?;
    }
    Ok(())
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// A text with the right version and checksum.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) header: Header,
    lines: String,
}

impl Whole {
    /// Checks the version and the checksum of `text`.
    pub(super) fn read(mut text: Vec<u8>) -> Result<Self, FormatError> {
        let damaged = |what: &str| FormatError::Damaged(what.to_owned());
        let end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n');
        let first = end(&text).ok_or_else(|| damaged("it has no header"))?;
        // Only this field is known to be in other versions.
        let version = serde_json::from_slice::<AnyHeader>(&text[..first])
            .map_err(|error| FormatError::Damaged(format!("its header: {error}")))?;
        if version.topo_lb_state != VERSION {
            return Err(FormatError::Version(version.topo_lb_state));
        }
        let body = text.strip_suffix(b"\n").ok_or_else(|| damaged("its end is missing"))?;
        let last = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let trailer = serde_json::from_slice::<Trailer>(&body[last..])
            .map_err(|_| damaged("its end is missing"))?;
        if trailer.crc32 != crc32fast::hash(&text[..last]) {
            return Err(damaged("its checksum does not match"));
        }
        let header = serde_json::from_slice(&text[..first])
            .map_err(|error| FormatError::Damaged(format!("its header: {error}")))?;
        text.truncate(last);
        text.drain(..=first);
        let lines = String::from_utf8(text).map_err(|_| damaged("it is not UTF-8"))?;
        Ok(Self { header, lines })
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = Result<Update, FormatError>> {
        self.lines.lines().map(object)
    }

    /// Like [`objects`](Self::objects), but owns the text.
    pub(super) fn into_objects(self) -> impl Iterator<Item = Update> + Send {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = self.lines.get(at..)?;
            let line = rest.lines().next()?;
            at += line.len() + 1;
            Some(object(line))
        })
        .filter_map(Result::ok)
    }
}

fn object(line: &str) -> Result<Update, FormatError> {
    match serde_json::from_str(line) {
        Ok(Entry::Node(node)) => Ok(Update::Node(Change::Applied(node))),
        Ok(Entry::Region(it)) => Ok(Update::ZoneRegion(it)),
        Ok(Entry::Namespace(it)) => Ok(Update::Namespace(Change::Applied(it))),
        Ok(Entry::Policy(policy)) if policy.id.is_of_cluster() => {
            Ok(Update::ClusterTopologyPolicy(Change::Applied(ClusterTopologyPolicy(policy))))
        }
        Ok(Entry::Policy(policy)) => Ok(Update::TopologyPolicy(Change::Applied(policy))),
        Ok(Entry::Service(service)) => Ok(Update::Service(Change::Applied(service))),
        Ok(Entry::Slice(slice)) => Ok(Update::Slice(Change::Applied(slice.into()))),
        Err(error) => Err(FormatError::Damaged(format!("an object: {error}"))),
    }
}
