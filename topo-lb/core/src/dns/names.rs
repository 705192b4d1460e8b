//! What this node answers, and where everything else goes. The agent task writes it; the resolver reads
//! it for every query.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::transport::Transport;
use crate::cluster::ServiceId;
use crate::topology::named::Named;

/// Endpoints of the cluster DNS that are asked together, and their share of all queries, of 1.
pub type Upstream = (f64, Vec<SocketAddr>);

/// What this node answers, and where everything else goes.
#[derive(Debug, Default)]
pub struct Names {
    /// By full name: lower case, with a dot at its end.
    names: HashMap<String, Named>,
    /// Endpoints of the cluster DNS by this node's decision.
    upstreams: Upstreams,
}

/// Endpoints of the cluster DNS by this node's decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upstreams {
    /// For datagrams.
    pub udp: Vec<Upstream>,
    /// For streams.
    pub tcp: Vec<Upstream>,
}

impl Names {
    /// What a name stands for; `None` if the cluster DNS answers. `name`: in lower case, with a dot at its
    /// end.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Named> {
        self.names.get(name)
    }

    /// Sets what the name of a Service stands for; `None`: the cluster DNS answers.
    pub fn set(&mut self, id: &ServiceId, domain: &str, named: Option<Named>) {
        let name = format!("{}.{}.svc.{domain}.", id.name, id.namespace).to_ascii_lowercase();
        match named {
            Some(named) => drop(self.names.insert(name, named)),
            None => drop(self.names.remove(&name)),
        }
    }

    /// How many names this node answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether this node answers no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Sets where everything else goes.
    pub fn set_upstreams(&mut self, upstreams: Upstreams) {
        self.upstreams = upstreams;
    }

    /// Whether there is anybody else to ask.
    #[must_use]
    pub fn has_upstream(&self) -> bool {
        !self.upstreams.udp.is_empty()
    }

    /// An endpoint of the cluster DNS that is not among `tried`. `random` returns numbers uniform over 32
    /// bits.
    #[must_use]
    pub fn upstream(
        &self,
        transport: Transport,
        tried: &[SocketAddr],
        mut random: impl FnMut() -> u32,
    ) -> Option<SocketAddr> {
        let groups = match transport {
            Transport::Udp => &self.upstreams.udp,
            Transport::Tcp => &self.upstreams.tcp,
        };
        let untried = |all: &[SocketAddr]| -> Vec<SocketAddr> {
            all.iter().copied().filter(|one| !tried.contains(one)).collect()
        };
        let (_, all) = pick(groups, |(share, _)| *share, random())?;
        let mut left = untried(all);
        if left.is_empty() {
            left = groups.iter().flat_map(|(_, all)| untried(all)).collect();
        }
        pick(&left, |_| 1.0, random()).copied()
    }
}

/// One of `all` by its share of their sum; `None` only without any. `random` is uniform over 32 bits.
pub fn pick<T>(all: &[T], share: impl Fn(&T) -> f64, random: u32) -> Option<&T> {
    let sum: f64 = all.iter().map(&share).sum();
    let mut left = sum * f64::from(random) / (f64::from(u32::MAX) + 1.0);
    let found = all.iter().find(|one| {
        left -= share(one);
        left < 0.0
    });
    found.or(all.last())
}

/// Names that two threads share.
#[derive(Clone, Debug, Default)]
pub struct SharedNames(Arc<RwLock<Names>>);

impl SharedNames {
    /// Reads them. No reader waits for anything else meanwhile.
    pub fn read<T>(&self, work: impl FnOnce(&Names) -> T) -> T {
        work(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes them.
    pub fn write<T>(&self, work: impl FnOnce(&mut Names) -> T) -> T {
        work(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
