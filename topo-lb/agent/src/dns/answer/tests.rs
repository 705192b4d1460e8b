use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::Name;
use proptest::prelude::*;

use super::*;
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::topology::named::{Group, Named};

fn id(name: &str) -> ServiceId {
    ServiceId { namespace: "shop".into(), name: name.into() }
}

fn four(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn group(share: f64, addresses: Vec<IpAddr>) -> Vec<Group> {
    vec![Group { share, addresses }]
}

/// `db` has three endpoints of IPv4, `both` of both families, `none` may use none, `large` has 200.
fn names() -> Names {
    let mut names = Names::default();
    let mut set = |name: &str, v4, v6| {
        names.set(&id(name), "cluster.local", Some(Named { v4, v6 }));
    };
    set("db", Some(group(1.0, (1..=3).map(four).collect())), None);
    set(
        "both",
        Some(group(1.0, vec![four(1)])),
        Some(group(1.0, vec![Ipv6Addr::LOCALHOST.into()])),
    );
    set("none", Some(Vec::new()), None);
    set("large", Some(group(1.0, (1..=200).map(four).collect())), None);
    let [near, far] =
        [(0.9, 1), (0.1, 2)].map(|(share, last)| Group { share, addresses: vec![four(last)] });
    set("spill", Some(vec![near, far]), None);
    names
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut query = Message::new(0xBEEF, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(name).expect(name), kind));
    query
}

fn ask(query: &Message, transport: Transport) -> Option<(Answer, Message)> {
    let mut state = 7_u32;
    let random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    let answer = answer(&query.to_vec().expect("a query"), transport, &names(), random)?;
    let message = Message::from_vec(&answer.bytes).expect("a message");
    Some((answer, message))
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    let mut all: Vec<_> = message.answers.iter().filter_map(|it| it.data.ip_addr()).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_name_is_answered_as_it_was_asked() {
    let name = "Db.shop.SVC.cluster.local.";
    let (answer, message) = ask(&query(name, RecordType::A), Transport::Udp).expect("ours");
    assert!(!answer.is_empty);
    assert_eq!(addresses(&message), [four(1), four(2), four(3)]);
    let metadata = &message.metadata;
    assert_eq!((metadata.id, metadata.message_type), (0xBEEF, MessageType::Response));
    assert_eq!(metadata.response_code, ResponseCode::NoError);
    assert!(metadata.authoritative && metadata.recursion_desired && metadata.recursion_available);
    assert!(!metadata.truncation && message.edns.is_none());
    assert_eq!(message.queries[0].name().to_ascii(), name, "resolvers compare case (0x20)");
    assert!(message.answers.iter().all(|it| it.ttl == LIFE && it.name.to_ascii() == name));
    let (_, six) = ask(&query("both.shop.svc.cluster.local.", RecordType::AAAA), Transport::Udp)
        .expect("ours");
    assert_eq!(addresses(&six), [IpAddr::from(Ipv6Addr::LOCALHOST)]);
}

#[test]
fn without_an_endpoint_the_name_exists_and_has_no_address() {
    for (name, kind) in
        [("none", RecordType::A), ("none", RecordType::AAAA), ("db", RecordType::AAAA)]
    {
        let query = query(&format!("{name}.shop.svc.cluster.local."), kind);
        let (answer, message) = ask(&query, Transport::Udp).expect("ours");
        assert!(answer.is_empty, "{name} {kind}");
        assert_eq!(message.metadata.response_code, ResponseCode::NoError, "{name} {kind}");
        assert!(message.answers.is_empty() && message.authorities.is_empty(), "nobody keeps it");
    }
}

#[test]
fn everything_else_is_the_cluster_dns() {
    let ours = "db.shop.svc.cluster.local.";
    for name in [
        "pod-0.db.shop.svc.cluster.local.", // of a StatefulSet
        "_sql._tcp.db.shop.svc.cluster.local.",
        "shop.svc.cluster.local.",
        "db.shop.svc.cluster.local.example.com.",
        "db.shop.svc.",
        "other.shop.svc.cluster.local.",
        "example.com.",
        ".",
    ] {
        assert!(ask(&query(name, RecordType::A), Transport::Udp).is_none(), "{name}");
    }
    for kind in
        [RecordType::SRV, RecordType::ANY, RecordType::HTTPS, RecordType::TXT, RecordType::SOA]
    {
        assert!(ask(&query(ours, kind), Transport::Udp).is_none(), "{kind}");
    }
    let plain = query(ours, RecordType::A);
    let changes: [fn(&mut Message); 7] = [
        |it| it.metadata.message_type = MessageType::Response,
        |it| it.metadata.op_code = OpCode::Notify,
        |it| it.queries.clear(),
        |it| it.queries.push(it.queries[0].clone()),
        |it| _ = it.queries[0].set_query_class(DNSClass::CH),
        |it| {
            it.answers.push(Record::from_rdata(
                Name::root(),
                0,
                RData::A(Ipv4Addr::LOCALHOST.into()),
            ))
        },
        |it| _ = it.set_edns(Edns::new().set_version(1).clone()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut query = plain.clone();
        change(&mut query);
        assert!(ask(&query, Transport::Udp).is_none(), "change {number}");
    }
}

#[test]
fn an_answer_is_as_large_as_the_client_can_take_and_no_larger_than_a_packet() {
    let mut query = query("large.shop.svc.cluster.local.", RecordType::A);
    for (payload, most) in [(None, 512), (Some(900), 900), (Some(65_000), 1232)] {
        if let Some(payload) = payload {
            query.set_edns(Edns::new().set_max_payload(payload).clone());
        }
        let (answer, message) = ask(&query, Transport::Udp).expect("ours");
        assert!(answer.bytes.len() <= most && message.metadata.truncation, "{payload:?}");
        assert_eq!(message.edns.is_some(), payload.is_some());
        let (_, whole) = ask(&query, Transport::Tcp).expect("ours");
        assert!(!whole.metadata.truncation);
        assert_eq!(addresses(&whole).len(), 200);
    }
}

#[test]
fn answers_divide_by_shares_and_every_address_comes_first() {
    let (mut far, mut first) = (0, std::collections::BTreeMap::new());
    let all = names();
    for (name, turns) in [("spill", 10_000_u32), ("db", 3_000)] {
        let query = query(&format!("{name}.shop.svc.cluster.local."), RecordType::A);
        let bytes = query.to_vec().expect("a query");
        let mut state = 1_u32;
        for _ in 0..turns {
            let random = || {
                // xorshift: all 32 bits are random.
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state
            };
            let answer = answer(&bytes, Transport::Udp, &all, random).expect("ours");
            let message = Message::from_vec(&answer.bytes).expect("a message");
            match name {
                "spill" => far += u32::from(addresses(&message) == [four(2)]),
                _ => *first.entry(message.answers[0].data.ip_addr()).or_insert(0) += 1,
            }
        }
    }
    assert!((900..1_100).contains(&far), "{far} of 10000 spill");
    assert_eq!(first.len(), 3);
    assert!(first.values().all(|times| (850..1_150).contains(times)), "{first:?}");
}

#[test]
fn a_name_is_forgotten_and_the_cluster_dns_answers_again() {
    let mut names = names();
    let bytes = query("db.shop.svc.cluster.local.", RecordType::A).to_vec().expect("a query");
    assert!(answer(&bytes, Transport::Udp, &names, || 0).is_some());
    names.set(&id("db"), "cluster.local", None);
    assert!(answer(&bytes, Transport::Udp, &names, || 0).is_none());
}

/// Random bytes, and changed bytes of a query that would be answered.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let mut plain = query("db.shop.svc.cluster.local.", RecordType::A);
    plain.set_edns(Edns::new());
    let plain = plain.to_vec().expect("a query");
    let changes = prop::collection::vec((0..plain.len(), any::<u8>()), 0..6);
    let changed = (changes, 0..=plain.len()).prop_map(move |(changes, cut)| {
        let mut bytes = plain.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes.truncate(cut.max(bytes.len() * usize::from(cut % 4 != 0)));
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..600), changed]
}

proptest! {
    /// Whatever comes, what we answer is an answer to it: its id, its question, and within its size.
    #[test]
    fn any_bytes_are_forwarded_or_answered_rightly(bytes in bytes(), random: u32) {
        if let Some(own) = answer(&bytes, Transport::Udp, &names(), || random) {
            let (asked, answer) = (Message::from_vec(&bytes), Message::from_vec(&own.bytes));
            let (asked, answer) = (asked.expect("a query"), answer.expect("a message"));
            prop_assert_eq!(&own.bytes[..2], &bytes[..2]);
            prop_assert_eq!(&answer.queries, &asked.queries);
            prop_assert!(names().get(&asked.queries[0].name().to_ascii().to_ascii_lowercase()).is_some());
            prop_assert!(own.bytes.len() <= usize::from(asked.max_payload()));
        }
    }
}
