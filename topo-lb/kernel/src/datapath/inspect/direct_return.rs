//! What direct return takes on this node, besides what other nodes and the network do.

use std::fs::read_to_string;
use std::io;
use std::net::IpAddr;

use rustix::thread::{CapabilitySet, capabilities};
use topo_lb_core::cluster::Family;

use crate::datapath::host::source_nat::{About, Hindrance, Hindrances};
use crate::device::{self, Device, Ways, address};

/// What this node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The one device of clients outside and of other nodes; or a sentence about what keeps packets from being sent on as
    /// they came.
    pub uplink: Result<String, String>,
    /// A sentence about somebody's rules for what the kernel forwards, which packets that are sent on do not pass here.
    pub rules: Option<String>,
    /// Whether this process may send the probes (`CAP_NET_RAW`).
    pub may_probe: bool,
    /// Devices other than the uplink by which default routes leave, of the families of which it has addresses.
    pub elsewhere: Vec<(Family, String)>,
    /// How the kernel checks sources of IPv4 packets that come by the uplink (`net.ipv4.conf.*.rp_filter`, the larger one
    /// of the device's and of all): 0 not, 1 whether answers would leave there, 2 whether there is a route.
    pub reverse_path: u8,
}

impl Ground {
    /// Looks at this network namespace. `uplinks`: the devices by which clients outside come.
    ///
    /// # Errors
    /// The kernel does not list devices, addresses or routes.
    pub fn look(uplinks: &[Device]) -> io::Result<Self> {
        let sets = capabilities(None);
        let may_probe = sets.is_ok_and(|it| it.effective.contains(CapabilitySet::NET_RAW));
        let none = |why| Self {
            uplink: Err(why),
            rules: None,
            may_probe,
            elsewhere: vec![],
            reverse_path: 0,
        };
        let sole = match device::sole_uplink(uplinks, &[])? {
            Ok(sole) => sole,
            Err(why) => return Ok(none(why)),
        };
        let rules = match Hindrances::default().find() {
            Some(Hindrance { sentence, about: About::Ways }) => return Ok(none(sentence)),
            Some(Hindrance { sentence, about: About::Rules }) => Some(sentence),
            Some(Hindrance { about: About::Ports, .. }) | None => None,
        };
        let ways = Ways::open()?;
        let is_other = |there: &IpAddr| {
            let family = Family::of(*there);
            sole.addresses.iter().any(|own| Family::of(*own) == family).then_some(())?;
            let by = ways.device_to(*there).filter(|by| *by != sole.device.index)?;
            Some((family, device::name(by)?))
        };
        let elsewhere = address::FAR_AWAY.iter().filter_map(is_other).collect();
        let name = sole.device.name;
        let value = |of: &str| {
            let text = read_to_string(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"));
            of_text(&text.unwrap_or_default())
        };
        let reverse_path = value("all").max(value(&name));
        Ok(Self { uplink: Ok(name), rules, may_probe, elsewhere, reverse_path })
    }
}

fn of_text(text: &str) -> u8 {
    text.trim().parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_cannot_be_read_checks_nothing() {
        assert_eq!(["0\n", "1\n", "2\n", "", "x"].map(of_text), [0, 1, 2, 0, 0]);
    }

    #[test]
    fn without_an_uplink_it_says_why() {
        let ground = Ground::look(&[]).expect("devices");
        assert_eq!(ground.uplink, Err("clients come by no device".to_owned()));
    }
}
