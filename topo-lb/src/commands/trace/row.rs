//! What is shown of a decision.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use topo_lb_common::backend::Locality;
use topo_lb_common::record::NO_TIER;
use topo_lb_common::trace::{Address, Decision, Hook, Outcome};

use super::pods::{Owner, PodName};
use topo_lb_core::cluster::Frontend;
use topo_lb_kernel::datapath::maps::encode::protocol_of;

/// Of a process whose cgroup is not to be found.
const UNKNOWN: &str = "its cgroup is gone, or not below --cgroup-root";

/// A decision on a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// When it was made.
    pub time: Timestamp,
    /// The process that dialled; none for a packet.
    pub process: Option<Process>,
    /// Its Pod; none for a process of the host, or if `podUnknown` says why.
    pub pod: Option<PodName>,
    /// Why it is not known whether this is a process of a Pod; none if it is.
    pub pod_unknown: Option<&'static str>,
    /// The name of the device that received the packet; none for a process.
    pub device: Option<String>,
    /// The packet's source, as `address:port`; none for a process: its socket has no address yet.
    pub client: Option<SocketAddr>,
    /// `namespace/name:port`; none if the Service is gone already, or unknown.
    pub service: Option<Arc<str>>,
    /// `address:port/protocol`.
    pub frontend: String,
    /// `address:port`; none unless routed.
    pub endpoint: Option<SocketAddr>,
    /// `node`, `zone`, `region` or `elsewhere`; none unless routed.
    pub locality: Option<&'static str>,
    /// Index of the topology key that matched.
    pub tier: Option<u8>,
    /// `routed`, `refused`, `dropped`, `limited` or `bypassed`.
    pub outcome: &'static str,
    /// Where it was decided: `connect`, `send`, `guest` or `outside`.
    pub hook: &'static str,
    /// Whether the programs only observe: the outcome is what would be.
    pub observing: bool,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number on the host.
    pub id: u32,
    /// The name of the thread that dialled.
    pub name: String,
}

/// What the maps and the host know beside a decision.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The name of the Service port.
    pub service: Option<Arc<str>>,
    /// Whose the process is.
    pub owner: Owner,
    /// The name of the device.
    pub device: Option<String>,
    /// Whether the programs only observe.
    pub is_observed: bool,
}

impl Row {
    /// The row of a decision.
    #[must_use]
    pub fn of(decision: &Decision, known: Known, clock: Clock) -> Self {
        let Known { service, owner, device, is_observed } = known;
        let outcome = Outcome::from_byte(decision.outcome);
        let is_routed = outcome == Some(Outcome::Routed);
        let has_process = decision.device == 0;
        let address = |address: &Address, port| SocketAddr::new(ip(address, decision.is_v6), port);
        let frontend = address(&decision.frontend, decision.frontend_port);
        Self {
            time: clock.at(decision.time),
            process: has_process
                .then(|| Process { id: decision.process, name: text(&decision.thread) }),
            pod_unknown: (owner == Owner::Unknown).then_some(UNKNOWN),
            pod: if let Owner::Pod(pod) = owner { Some(pod) } else { None },
            device: device.filter(|_| !has_process),
            client: (!has_process).then(|| address(&decision.client, decision.client_port)),
            service,
            frontend: match protocol_of(decision.protocol) {
                Some(protocol) => {
                    Frontend::new(frontend.ip(), frontend.port(), protocol).to_string()
                }
                None => frontend.to_string(),
            },
            endpoint: is_routed.then(|| address(&decision.endpoint, decision.endpoint_port)),
            locality: is_routed.then(|| Locality::from_byte(decision.locality).name()),
            tier: Some(decision.tier).filter(|tier| *tier != NO_TIER),
            outcome: match outcome {
                Some(Outcome::Routed) => "routed",
                Some(Outcome::Refused) => "refused",
                Some(Outcome::Dropped) => "dropped",
                Some(Outcome::Limited) => "limited",
                Some(Outcome::TableFull) => "table-full",
                Some(Outcome::Bypassed) => "bypassed",
                None => "unknown",
            },
            hook: match Hook::from_byte(decision.hook) {
                Some(Hook::Connect) => "connect",
                Some(Hook::Send) => "send",
                Some(Hook::Guest) => "guest",
                Some(Hook::Outside) => "outside",
                None => "unknown",
            },
            observing: is_observed,
        }
    }
}

/// The moment at which `CLOCK_MONOTONIC` was zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub Timestamp);

impl Clock {
    /// Reads both clocks.
    #[must_use]
    pub fn read() -> Self {
        let now = Timestamp::now();
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let up = SignedDuration::new(up.tv_sec, up.tv_nsec as i32);
        Self(now.checked_sub(up).unwrap_or(now))
    }

    /// The moment at so many nanoseconds, to the microsecond.
    fn at(self, nanoseconds: u64) -> Timestamp {
        let up = SignedDuration::from_micros((nanoseconds / 1_000) as i64);
        self.0.checked_add(up).unwrap_or(self.0)
    }
}

fn ip(address: &Address, is_v6: u8) -> IpAddr {
    let [a, b, c, d, ..] = *address;
    if is_v6 != 0 { Ipv6Addr::from(*address).into() } else { Ipv4Addr::new(a, b, c, d).into() }
}

/// The text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use topo_lb_common::address::TCP;

    use super::*;

    /// A connection of a process that is routed, 1.5 s after the start.
    pub(in crate::commands::trace) fn routed() -> Decision {
        let address = |bytes: [u8; 4]| {
            let mut address = Address::default();
            address[..4].copy_from_slice(&bytes);
            address
        };
        let mut thread = [0; 16];
        thread[..4].copy_from_slice(b"curl");
        Decision {
            time: 1_500_000_000,
            cgroup: 7,
            frontend: address([10, 96, 0, 1]),
            endpoint: address([10, 0, 0, 5]),
            client: Address::default(),
            thread,
            service: 3,
            process: 4711,
            device: 0,
            frontend_port: 80,
            endpoint_port: 8080,
            client_port: 0,
            protocol: TCP,
            is_v6: 0,
            hook: Hook::Connect as u8,
            outcome: Outcome::Routed as u8,
            tier: 1,
            locality: Locality::Zone as u8,
        }
    }

    pub(in crate::commands::trace) fn row(decision: &Decision, service: Option<&str>) -> Row {
        let known = Known { service: service.map(Arc::from), ..Known::default() };
        Row::of(decision, known, Clock(Timestamp::UNIX_EPOCH))
    }

    #[test]
    fn a_process_that_is_routed_has_all_but_a_client() {
        let json = serde_json::to_value(row(&routed(), Some("default/web:http"))).unwrap();
        let wanted = serde_json::json!({
            "time": "1970-01-01T00:00:01.5Z",
            "process": { "id": 4711, "name": "curl" },
            "pod": null,
            "podUnknown": null,
            "device": null,
            "client": null,
            "service": "default/web:http",
            "frontend": "10.96.0.1:80/TCP",
            "endpoint": "10.0.0.5:8080",
            "locality": "zone",
            "tier": 1,
            "outcome": "routed",
            "hook": "connect",
            "observing": false,
        });
        assert_eq!(json, wanted);
    }

    #[test]
    fn only_what_is_routed_has_an_endpoint() {
        for outcome in 1..=u8::MAX {
            let row = row(&Decision { outcome, tier: NO_TIER, ..routed() }, None);
            assert_eq!((row.endpoint, row.locality, row.tier), (None, None, None), "{outcome}");
        }
    }

    #[test]
    fn a_packet_has_a_client_and_a_device_in_place_of_a_process() {
        let mut client = [0; 16];
        client[15] = 9;
        let packet = Decision { device: 2, client, client_port: 99, is_v6: 1, ..routed() };
        let known = Known { device: Some("tap0".into()), ..Known::default() };
        let row = Row::of(&packet, known, Clock::read());
        assert_eq!(row.process, None);
        assert_eq!(row.client.map(|it| it.to_string()).as_deref(), Some("[::9]:99"));
        assert_eq!(row.device.as_deref(), Some("tap0"));
    }

    #[test]
    fn bytes_without_a_meaning_make_a_row_anyway() {
        for byte in [7, 77, 255] {
            let odd = Decision { outcome: byte, hook: byte, protocol: byte, ..routed() };
            let odd = Decision { time: u64::MAX, locality: byte, is_v6: byte, ..odd };
            let row = row(&odd, None);
            assert_eq!((row.outcome, row.hook), ("unknown", "unknown"));
        }
    }

    #[test]
    fn the_name_of_a_thread_ends_at_a_zero() {
        assert_eq!(text(b"a b\xff\0c"), "a b\u{fffd}");
        assert_eq!(text(&[b'x'; 16]), "x".repeat(16));
    }
}
