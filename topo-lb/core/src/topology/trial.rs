//! Objects on trial: with `topo-lb.io/mode: observe` nothing that an object says holds anywhere, with
//! `topo-lb.io/ramp: 10%` it holds on that share of nodes. Elsewhere it is as if the object were not there.
//!
//! A node's place is the remainder of the CRC-32 (IEEE 802.3, as in gzip) of its name by 10,000, in hundredths
//! of a percent. A ramp holds on nodes with a place below it. So every agent agrees, a larger ramp holds on all
//! nodes of a smaller one, and equal ramps hold on the same nodes.

use std::fmt;

use topo_lb_common::selection::SPILL_ONE;

use super::field::Field;
use super::origin::Origin;
use super::spill::{self, Share};
use super::validation::{Ignored, Rule, kept, quoted};
use crate::cluster::Annotation;
use crate::cluster::service::PolicySources;

/// Where a policy is seen from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen<'a> {
    /// A node. The empty name is within every ramp above 0.
    From(&'a str),
    /// As if no object were on trial.
    InFull,
}

/// An object on trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The object.
    pub origin: Origin,
    /// `mode: observe`.
    pub observes: bool,
    /// `ramp`.
    pub ramp: Option<Share>,
    /// The place of this node among all.
    pub place: Share,
}

impl Trial {
    /// The trial of an object; `None`: it is on none.
    ///
    /// # Errors
    /// The field that breaks a rule. Then nothing of the object holds: who limits it does not want all of it.
    pub(super) fn of(
        origin: &Origin,
        policy: &PolicySources,
        node: &str,
    ) -> Result<Option<Self>, Ignored> {
        let ignored = |what| move |rule| Ignored { origin: origin.clone(), what, rule };
        let observes =
            Field::Of(Annotation::Mode).said(policy).map(|text| match kept(text)?.trim() {
                "observe" => Ok(true),
                "enforce" => Ok(false),
                _ => Err(Rule::ModeUnknown { text: quoted(text) }),
            });
        let observes =
            observes.transpose().map_err(ignored(Field::Of(Annotation::Mode)))?.unwrap_or(false);
        let ramp = Field::Of(Annotation::Ramp).said(policy);
        let ramp = ramp.map(|text| spill::from_annotation(kept(text)?));
        let ramp = ramp.transpose().map_err(ignored(Field::Of(Annotation::Ramp)))?;
        let trial = || Self { origin: origin.clone(), observes, ramp, place: place(node) };
        Ok((observes || ramp.is_some()).then(trial))
    }

    /// Whether the object holds on this node.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.observes && self.ramp.is_none_or(|ramp| self.place.parts() < ramp.parts())
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, observes, ramp, place } = self;
        match ramp {
            _ if *observes => write!(f, "{origin} holds on no node (mode: observe)"),
            Some(ramp) if self.holds() => {
                write!(f, "{origin} holds here: its ramp is {ramp}, and this node is at {place}")
            }
            Some(ramp) => {
                write!(
                    f,
                    "{origin} does not hold here: its ramp is {ramp}, and this node is at {place}"
                )
            }
            None => write!(f, "{origin} holds on every node"),
        }
    }
}

/// The place of a node among all: 0 % and more, below 100 %.
pub(super) fn place(node: &str) -> Share {
    let one = u32::from(SPILL_ONE);
    Share::of((crc32fast::hash(node.as_bytes()) % one).into(), one.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_follows_from_the_name_and_never_changes() {
        // python3 -c 'import zlib; print(zlib.crc32(b"n1") % 10_000)'
        for (node, parts) in [("", 0), ("n1", 7_356), ("ip-10-0-0-7.ec2.internal", 6_849)] {
            assert_eq!(place(node).parts(), parts, "{node}");
        }
    }

    #[test]
    fn a_ramp_holds_on_its_share_of_nodes_whatever_they_are_called() {
        for name in [
            &(|at: usize| format!("node-{at}")) as &dyn Fn(usize) -> String,
            &|at| format!("ip-10-0-{}-{}.eu-west-1.compute.internal", at / 250, at % 250),
            &|at| format!("gke-prod-pool-{:04x}", at * 7919 % 65_536),
        ] {
            let mut places: Vec<_> = (0..1_000).map(|at| place(&name(at)).parts()).collect();
            places.sort_unstable();
            for percent in [1, 5, 10, 25, 50, 75, 90] {
                let held = places.partition_point(|&it| it < percent * 100);
                let wanted = usize::from(percent) * 10;
                assert!(held.abs_diff(wanted) <= 45, "{} {percent}%: {held}", name(0));
            }
        }
    }
}
