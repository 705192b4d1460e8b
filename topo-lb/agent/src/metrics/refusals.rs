//! Refused connections by reason. The kernel counts them per Service port; only the agent knows the
//! current reason. Refusals since the last look are counted for the reason at this look.

use std::collections::BTreeMap;
use std::sync::Arc;

use topo_lb_core::refusal::Refusal;

/// Refusals of each Service port that has any, by reason. Their sum is the kernel's count.
#[derive(Debug, Default)]
pub struct Refusals {
    ports: BTreeMap<Arc<str>, Port>,
}

#[derive(Debug, Default)]
struct Port {
    /// The kernel's count at the last look.
    counted: u64,
    by_reason: BTreeMap<Refusal, u64>,
}

impl Refusals {
    /// Counts new refusals. `counted` has the kernel's count of each Service port that has refused;
    /// `reasons` says why each refuses now. Forgets Service ports that are not in `counted`.
    pub fn look(
        &mut self,
        counted: &BTreeMap<Arc<str>, u64>,
        reasons: &BTreeMap<Arc<str>, Refusal>,
    ) {
        self.ports.retain(|name, _| counted.contains_key(name));
        for (name, &counted) in counted {
            let port = self.ports.entry(Arc::clone(name)).or_default();
            if counted < port.counted {
                // A new Service with this name: its counters start at zero.
                *port = Port::default();
            }
            let new = counted - port.counted;
            if new > 0 {
                let reason = reasons.get(name).copied().unwrap_or(Refusal::Past);
                *port.by_reason.entry(reason).or_default() += new;
                port.counted = counted;
            }
        }
    }

    /// Service port, reason, number of refusals.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, Refusal, u64)> {
        self.ports.iter().flat_map(|(name, port)| {
            port.by_reason.iter().map(move |(reason, count)| (name, *reason, *count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> BTreeMap<Arc<str>, u64> {
        BTreeMap::from([("default/web:http".into(), count)])
    }

    fn because(reason: Refusal) -> BTreeMap<Arc<str>, Refusal> {
        BTreeMap::from([("default/web:http".into(), reason)])
    }

    fn all(refusals: &Refusals) -> Vec<(Refusal, u64)> {
        refusals.iter().map(|(_, reason, count)| (reason, count)).collect()
    }

    #[test]
    fn what_is_new_is_put_down_to_the_reason_of_now() {
        let mut refusals = Refusals::default();
        refusals.look(&counted(3), &because(Refusal::Policy));
        refusals.look(&counted(5), &because(Refusal::NoEndpoints));
        refusals.look(&counted(5), &BTreeMap::new());
        refusals.look(&counted(6), &BTreeMap::new());
        let wanted = [(Refusal::Policy, 3), (Refusal::NoEndpoints, 2), (Refusal::Past, 1)];
        assert_eq!(all(&refusals), wanted);
    }

    #[test]
    fn a_service_that_begins_anew_is_counted_anew() {
        let mut refusals = Refusals::default();
        refusals.look(&counted(9), &because(Refusal::Policy));
        refusals.look(&counted(2), &because(Refusal::Policy));
        assert_eq!(all(&refusals), [(Refusal::Policy, 2)]);
        refusals.look(&BTreeMap::new(), &BTreeMap::new());
        assert_eq!(all(&refusals), []);
    }
}
