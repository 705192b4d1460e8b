//! Rules of routing besides the kernel's own ones: the helper by which a program sends a packet on looks
//! up its route without the mark and the incoming device (`bpf_redirect_neigh`, net/core/filter.c).

use std::ops::RangeInclusive;

use netlink_bindings::rt_rule::{Chained, FibRuleAttrs, FibRuleHdr, FrAct};

use crate::netlink::Netlink;

/// The tables that the kernel's own rules look up: default, main and local.
const USUAL_TABLES: RangeInclusive<u32> = 253..=255;

/// A sentence about the first such rule of `ip rule`.
pub(super) fn find() -> Option<String> {
    let mut request = Chained::new(0);
    drop(request.request().op_getrule_dump(&FibRuleHdr::new()));
    let mut found = None;
    let listed = Netlink::open(None).and_then(|netlink| {
        netlink.ask(request.finalize().buf(), |kind, body| {
            if kind == libc::RTM_NEWRULE {
                found = found.take().or_else(|| of_rule(body));
            }
        })
    });
    match listed {
        Ok(()) => found,
        Err(error) => Some(format!("rules of routing cannot be listed: {error}")),
    }
}

fn of_rule(body: &[u8]) -> Option<String> {
    let (header, attributes) = body.split_at_checked(FibRuleHdr::len())?;
    let header = FibRuleHdr::new_from_slice(header)?;
    let attributes = FibRuleAttrs::new(attributes);
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&header.family.into());
    let is_usual = header.action == FrAct::ToTbl as u8
        && attributes.get_table().is_ok_and(|table| USUAL_TABLES.contains(&table));
    (is_ip && !is_usual).then(|| {
        format!(
            "the rule of `ip rule` with priority {} may lead to other nodes in another way",
            attributes.get_priority().unwrap_or_default()
        )
    })
}
