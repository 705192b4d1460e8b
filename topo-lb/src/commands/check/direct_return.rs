//! Whether this node takes part in direct return, and what breaks it here.

use super::Finding;
use topo_lb_core::cluster::Family;
use topo_lb_core::flag::DIRECT_RETURN;
use topo_lb_kernel::datapath::inspect::direct_return::Ground;
use topo_lb_kernel::device::{self, Pattern};

const NAME: &str = "direct return";
const RETURN_ROUTE: &str = "return route";

/// Looks at the uplinks that the agent would choose. `patterns`: of `--external-devices`; `is_on`: the agent has direct
/// return. None if there are no uplinks.
pub(super) fn findings(patterns: &[Pattern], is_on: bool) -> Vec<Finding> {
    let uplinks = device::uplinks(patterns).map(|uplinks| uplinks.served).unwrap_or_default();
    if uplinks.is_empty() {
        return Vec::new();
    }
    match Ground::look(&uplinks) {
        Ok(ground) => of(&ground, is_on),
        Err(error) => {
            vec![Finding::limited(
                NAME,
                format!("the routes of this node cannot be looked up: {error}"),
            )]
        }
    }
}

fn of(ground: &Ground, is_on: bool) -> Vec<Finding> {
    let uplink = match &ground.uplink {
        Ok(uplink) => uplink,
        // It is no fault unless somebody asks for direct return.
        Err(why) if !is_on => {
            let sentence = format!("{DIRECT_RETURN} auto would change nothing here: {why}");
            return vec![Finding::ok(NAME, sentence)];
        }
        Err(why) => {
            let sentence =
                format!("this node takes no part, and connections get source NAT: {why}");
            return vec![
                Finding::limited(NAME, sentence)
                    .advised("docs/bare-metal.md says what direct return takes"),
            ];
        }
    };
    let elsewhere = ground.elsewhere.iter().map(|it| return_route(uplink, it, ground.reverse_path));
    if !is_on {
        let but =
            if ground.elsewhere.is_empty() { "" } else { ", once default routes leave there" };
        let sentence = format!(
            "off; with {DIRECT_RETURN} auto this node could send packets of clients outside on by {uplink}{but}"
        );
        return vec![Finding::ok(NAME, sentence)];
    }
    let first = if ground.may_probe {
        let rules = ground.rules.as_ref().map_or_else(String::new, |rules| {
            format!("; rules of the endpoint's node hold for them, and none of this one, although {rules}")
        });
        let sentence = format!(
            "packets of clients outside are sent on by {uplink}, to nodes that `topo-lb list peers` says are proved{rules}"
        );
        Finding::ok(NAME, sentence)
    } else {
        let sentence = "this process does not have CAP_NET_RAW; an agent without it sends no probe, so no node is \
                        proved, and connections get source NAT";
        Finding::limited(NAME, sentence)
            .advised("give it CAP_NET_RAW: the component direct-return or directReturn=true does")
    };
    [first].into_iter().chain(elsewhere).collect()
}

/// A default route of a family leaves by another device than the uplink.
fn return_route(uplink: &str, (family, by): &(Family, String), reverse_path: u8) -> Finding {
    let clients = format!("clients to which only the {family} default route leads, by {by}");
    if *family == Family::V4 && reverse_path == 1 {
        let sentence = format!(
            "packets that other nodes send on are dropped if they are of {clients}: net.ipv4.conf.{uplink}.rp_filter \
             or that of all is 1"
        );
        return Finding::limited(RETURN_ROUTE, sentence).advised(&format!(
            "let routes to clients leave by {uplink}; `sysctl -w net.ipv4.conf.{uplink}.rp_filter=2` lets the \
             packets in, but answers still leave by {by}"
        ));
    }
    let sentence = format!(
        "answers to {clients}, do not come from the load balancer IP, as they do not pass {uplink}"
    );
    Finding::limited(RETURN_ROUTE, sentence)
        .advised(&format!("let routes to clients leave by {uplink}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Status;

    fn healthy() -> Ground {
        let uplink = Ok("eth0".to_owned());
        Ground { uplink, rules: None, may_probe: true, elsewhere: Vec::new(), reverse_path: 1 }
    }

    fn said(ground: &Ground, is_on: bool) -> Vec<(Status, String)> {
        let all = of(ground, is_on).into_iter();
        all.map(|it| (it.status, it.sentence + " → " + &it.remedy.unwrap_or_default())).collect()
    }

    #[test]
    fn a_healthy_node_has_one_line_whether_it_is_on_or_off() {
        for (is_on, words) in [(true, "are sent on by eth0"), (false, "off; with --direct-return")]
        {
            // A strict filter harms nobody whose answers leave by the uplink.
            let said = said(&healthy(), is_on);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].0 == Status::Ok && said[0].1.contains(words), "{said:?}");
        }
    }

    #[test]
    fn what_leaves_connections_to_the_kernel_is_a_fault_only_where_direct_return_is_on() {
        let why = "clients come by eth0 and eth1".to_owned();
        let ground = Ground { uplink: Err(why.clone()), may_probe: false, ..healthy() };
        for (is_on, status, words) in [
            (true, Status::Limited, "this node takes no part"),
            (false, Status::Ok, "would change nothing here"),
        ] {
            let said = said(&ground, is_on);
            assert_eq!((said.len(), said[0].0), (1, status), "{said:?}");
            assert!(said[0].1.contains(words) && said[0].1.contains(&why), "{said:?}");
        }
    }

    #[test]
    fn rules_for_forwarded_packets_are_named_and_are_no_fault() {
        let rules = Some("the chain FORWARD of the nftables table filter is for them, too".into());
        let said = said(&Ground { rules, ..healthy() }, true);
        assert_eq!((said.len(), said[0].0), (1, Status::Ok), "{said:?}");
        assert!(said[0].1.contains("none of this one, although the chain FORWARD"), "{said:?}");
    }

    #[test]
    fn probes_take_a_capability() {
        let ground = Ground { may_probe: false, ..healthy() };
        let said_on = said(&ground, true);
        assert_eq!((said_on.len(), said_on[0].0), (1, Status::Limited), "{said_on:?}");
        assert!(said_on[0].1.contains("CAP_NET_RAW"), "{said_on:?}");
        assert_eq!(said(&ground, false)[0].0, Status::Ok, "without direct return none is needed");
    }

    #[test]
    fn a_default_route_by_another_device_is_said_with_what_a_strict_filter_does() {
        let by = |family| (family, "eth1".to_owned());
        let elsewhere = vec![by(Family::V4), by(Family::V6)];
        for (reverse_path, filters) in [(0, false), (1, true), (2, false)] {
            let ground = Ground { elsewhere: elsewhere.clone(), reverse_path, ..healthy() };
            let said = said(&ground, true);
            let [own, four, six] = &said[..] else { panic!("{said:?}") };
            assert_eq!([own.0, four.0, six.0], [Status::Ok, Status::Limited, Status::Limited]);
            assert!(four.1.contains("IPv4 default route leads, by eth1"), "{four:?}");
            assert_eq!(four.1.contains("rp_filter or that of all is 1"), filters, "{four:?}");
            assert!(!six.1.contains("rp_filter") && six.1.contains("IPv6"), "{six:?}");
        }
        let ground = Ground { elsewhere, ..healthy() };
        let off = said(&ground, false);
        assert_eq!((off.len(), off[0].0), (1, Status::Ok), "{off:?}");
    }
}
