//! Many destinations dialled at once by one client in a pod, to find out who answers each, and which
//! source address the endpoint sees.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::traffic::Failure;

/// What a request asks for, instead of only the server's name: `NAME ADDRESS`, with the source address
/// of the request.
pub const SOURCE_PATH: &str = "/source";
/// The datagram that asks for the same.
pub const SOURCE_DATAGRAM: &[u8] = b"source?";

/// An exchange without an answer for so long has failed ([`patient`](crate::wait::patient)). TCP and the
/// client itself have repeated the first packet once by then.
pub const LIMIT: Duration = Duration::from_secs(2);

/// A transport protocol.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
pub enum Transport {
    /// TCP: one HTTP request per connection.
    #[strum(serialize = "TCP")]
    Tcp,
    /// UDP: one datagram per connected socket.
    #[strum(serialize = "UDP")]
    Udp,
}

/// A destination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dial {
    /// The protocol.
    pub transport: Transport,
    /// The address.
    pub to: SocketAddr,
    /// The source port is the next of these that is free: no two exchanges of a client share one, as a
    /// flow that a proxy remembers would decide about the next.
    pub ports: RangeInclusive<u16>,
    /// Stop when so many servers have answered, or one has and another exchange has failed.
    pub enough: usize,
    /// Stop after so many exchanges, each through a new socket.
    pub most: u32,
    /// After each answer, these are dialled from the same port, one after the other.
    pub then: Vec<SocketAddr>,
}

/// What came of a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dialled {
    /// The source addresses that each server has seen.
    pub answers: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The first failure.
    pub failure: Option<Failure>,
    /// How many of [`Dial::then`] have answered.
    pub then_answered: u32,
    /// The others.
    pub then_failed: Vec<(SocketAddr, Failure)>,
}

impl Dialled {
    /// How many different things have happened.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.answers.len() + usize::from(self.failure.is_some())
    }

    /// Adds an answer: `NAME ADDRESS`, where an IPv4 address may be mapped. `None` if it is not that.
    pub fn add(&mut self, answer: &str) -> Option<()> {
        let (name, source) = answer.split_once(' ')?;
        let source: IpAddr = source.parse().ok()?;
        self.answers.entry(name.to_owned()).or_default().insert(source.to_canonical());
        Some(())
    }
}
