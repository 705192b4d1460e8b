//! A query becomes an answer, or is not ours. Pure.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use topo_lb_core::cluster::Family;
use topo_lb_core::dns::names::{Names, pick};
use topo_lb_core::dns::transport::Transport;

/// How long a client may keep an answer, in seconds: as CoreDNS answers for a cluster.
pub const LIFE: u32 = 5;
/// Most bytes of a datagram of ours, whatever the client can take: larger ones are fragmented on the way
/// (DNS flag day 2020).
const MOST_DATAGRAM: u16 = 1232;
/// Most bytes over TCP.
const MOST_STREAM: u16 = u16::MAX;

/// An answer of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// As it is sent; over TCP without its length.
    pub bytes: Vec<u8>,
    /// Whether it has no address: the policy allows no endpoint.
    pub is_empty: bool,
}

/// The answer to `query`; `None` if the cluster DNS has to answer. Of a name that is ours, only addresses
/// are ours: other types, and whatever is no plain question, are the cluster DNS's.
///
/// A name without an endpoint that may be used has an answer without addresses (`NOERROR`). `NXDOMAIN`
/// would say that nothing exists at or below the name (RFC 8020), and pods of a StatefulSet have names
/// there. Without a SOA record nobody keeps it (RFC 2308, section 5).
///
/// `random` returns numbers uniform over 32 bits.
#[must_use]
pub fn answer(
    query: &[u8],
    transport: Transport,
    names: &Names,
    mut random: impl FnMut() -> u32,
) -> Option<Answer> {
    if names.is_empty() {
        return None;
    }
    let query = Message::from_vec(query).ok()?;
    let is_plain = query.metadata.message_type == MessageType::Query
        && query.metadata.op_code == OpCode::Query
        && query.answers.is_empty()
        && query.authorities.is_empty()
        && query.additionals.is_empty()
        && query.signature.is_none()
        && query.version() == 0;
    let [question] = query.queries.as_slice() else { return None };
    if !is_plain || question.query_class() != DNSClass::IN {
        return None;
    }
    let family = match question.query_type() {
        RecordType::A => Family::V4,
        RecordType::AAAA => Family::V6,
        _ => return None,
    };
    let named = names.get(&question.name().to_ascii().to_ascii_lowercase())?;
    let none = Vec::new();
    let groups = match (named.of(family), &named.v4, &named.v6) {
        (Some(groups), ..) => groups,
        // It has endpoints of the other family only, so the answer is empty.
        (None, Some(_), _) | (None, _, Some(_)) => &none,
        (None, None, None) => return None,
    };
    let group = pick(groups, |group| group.share, random());
    let mut addresses = group.map(|group| group.addresses.clone()).unwrap_or_default();
    shuffle(&mut addresses, random);
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.metadata = Metadata::response_from_request(&query.metadata);
    answer.metadata.authoritative = true;
    answer.metadata.recursion_available = query.metadata.recursion_desired;
    answer.add_query(question.clone());
    let record = |&address: &IpAddr| {
        let data = match address {
            IpAddr::V4(address) => RData::A(address.into()),
            IpAddr::V6(address) => RData::AAAA(address.into()),
        };
        Record::from_rdata(question.name().clone(), LIFE, data)
    };
    answer.add_answers(addresses.iter().map(record));
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MOST_DATAGRAM);
        answer.set_edns(edns);
    }
    let most = match transport {
        Transport::Udp => query.max_payload().min(MOST_DATAGRAM),
        Transport::Tcp => MOST_STREAM,
    };
    let mut bytes = answer.to_vec().ok()?;
    if bytes.len() > usize::from(most) {
        bytes = answer.truncate().to_vec().ok()?;
    }
    Some(Answer { bytes, is_empty: addresses.is_empty() })
}

/// Whether a message has the id of the query, and is an answer.
#[must_use]
pub fn is_answer(message: &[u8], query: &[u8]) -> bool {
    const RESPONSE: u8 = 1 << 7;
    let [first, second, flags, ..] = message else { return false };
    query.starts_with(&[*first, *second]) && flags & RESPONSE != 0
}

/// Fisher and Yates: most clients dial the first address.
fn shuffle(addresses: &mut [IpAddr], mut random: impl FnMut() -> u32) {
    for left in (1..addresses.len()).rev() {
        let other = (u64::from(random()) * (left as u64 + 1)) >> 32;
        addresses.swap(left, other as usize);
    }
}

#[cfg(test)]
mod tests;
