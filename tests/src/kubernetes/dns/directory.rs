//! The names of a cluster and their records, as Kubernetes' DNS specification 1.1.0 has them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use hickory_server::proto::rr::rdata::{A, CNAME, PTR, SRV};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use serde_json::Value;

/// The domain of the cluster.
pub const DOMAIN: &str = "cluster.local";

/// How long, in seconds, a client may keep an answer.
const LIFE: u32 = 5;

/// How many ExternalNames in a row are followed.
const MOST_ALIASES: usize = 8;

/// Records by name, without the last dot.
#[derive(Debug, Default)]
pub struct Directory(BTreeMap<String, Vec<RData>>);

impl Directory {
    /// The names of these Services and Endpoints; ignores what lacks a field.
    #[must_use]
    pub fn of(services: &[Value], endpoints: &[Value]) -> Self {
        let mut it = Self::default();
        for service in services {
            let (name, namespace) =
                (&service["metadata"]["name"], &service["metadata"]["namespace"]);
            let (Some(name), Some(namespace)) = (name.as_str(), namespace.as_str()) else {
                continue;
            };
            let full = format!("{name}.{namespace}.svc.{DOMAIN}");
            let spec = &service["spec"];
            let same = |it: &&Value| {
                it["metadata"]["name"] == *name && it["metadata"]["namespace"] == *namespace
            };
            match (spec["type"].as_str(), spec["clusterIP"].as_str()) {
                (Some("ExternalName"), _) => {
                    it.alias(&full, spec["externalName"].as_str().unwrap_or_default());
                }
                (_, Some("None")) => {
                    // The name exists without endpoints too.
                    it.0.entry(full.clone()).or_default();
                    for subset in endpoints
                        .iter()
                        .find(same)
                        .map_or(&Value::Null, |it| &it["subsets"])
                        .items()
                    {
                        it.headless(&full, subset);
                    }
                }
                (_, Some(address)) => it.service(&full, address, spec),
                _ => {}
            }
        }
        it
    }

    /// The records of a name (in lower case, with or without the last dot) and a type; follows
    /// aliases. `None`: there is no such name.
    #[must_use]
    pub fn look_up(&self, name: &str, kind: RecordType) -> Option<Vec<Record>> {
        let mut name = name.trim_end_matches('.').to_owned();
        let mut answer = Vec::new();
        for _ in 0..MOST_ALIASES {
            let Some(found) = self.find(&name) else {
                // An alias to a name elsewhere is an answer.
                return (!answer.is_empty()).then_some(answer);
            };
            let Ok(owner) = Name::from_ascii(format!("{name}.")) else { return None };
            let record = |data: &RData| Record::from_rdata(owner.clone(), LIFE, data.clone());
            let alias = found.iter().find_map(|data| match data {
                RData::CNAME(to) if kind != RecordType::CNAME => Some(to.to_string()),
                _ => None,
            });
            let Some(alias) = alias else {
                let wanted = |data: &&RData| kind == RecordType::ANY || data.record_type() == kind;
                answer.extend(found.iter().filter(wanted).map(record));
                return Some(answer);
            };
            answer.extend(found.iter().map(record));
            alias.trim_end_matches('.').to_lowercase().clone_into(&mut name);
        }
        Some(answer)
    }

    fn find(&self, name: &str) -> Option<Vec<RData>> {
        if let Some(found) = self.0.get(name) {
            return Some(found.clone());
        }
        if let Some(address) = pod(name) {
            return Some(vec![RData::A(A(address))]);
        }
        // A name between others exists, and has no records.
        let end = format!(".{name}");
        self.0.keys().any(|other| other.ends_with(&end)).then(Vec::new)
    }

    fn service(&mut self, name: &str, address: &str, spec: &Value) {
        let Ok(address) = address.parse::<Ipv4Addr>() else { return };
        self.add(name, RData::A(A(address)));
        self.reverse(address, name);
        for port in spec["ports"].items() {
            self.port(name, port, name);
        }
    }

    fn headless(&mut self, name: &str, subset: &Value) {
        for address in subset["addresses"].items() {
            let Some(ip) = address["ip"].as_str().and_then(|ip| ip.parse::<Ipv4Addr>().ok()) else {
                continue;
            };
            let dashed = ip.to_string().replace('.', "-");
            let host = format!("{}.{name}", address["hostname"].as_str().unwrap_or(&dashed));
            self.add(name, RData::A(A(ip)));
            self.add(&host, RData::A(A(ip)));
            self.reverse(ip, &host);
            for port in subset["ports"].items() {
                self.port(name, port, &host);
            }
        }
    }

    /// `_http._tcp.NAME`
    fn port(&mut self, name: &str, port: &Value, target: &str) {
        let (Some(port_name), Some(number)) = (port["name"].as_str(), port["port"].as_u64()) else {
            return;
        };
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_lowercase();
        let Ok(number) = u16::try_from(number) else { return };
        if let Ok(target) = Name::from_ascii(format!("{target}.")) {
            let data = RData::SRV(SRV::new(0, 100, number, target));
            self.add(&format!("_{port_name}._{protocol}.{name}"), data);
        }
    }

    fn reverse(&mut self, address: Ipv4Addr, name: &str) {
        let [a, b, c, d] = address.octets();
        if let Ok(name) = Name::from_ascii(format!("{name}.")) {
            self.add(&format!("{d}.{c}.{b}.{a}.in-addr.arpa"), RData::PTR(PTR(name)));
        }
    }

    fn alias(&mut self, name: &str, target: &str) {
        if let Ok(target) = Name::from_ascii(format!("{}.", target.trim_end_matches('.'))) {
            self.add(name, RData::CNAME(CNAME(target)));
        }
    }

    fn add(&mut self, name: &str, data: RData) {
        let all = self.0.entry(name.to_lowercase()).or_default();
        if !all.contains(&data) {
            all.push(data);
        }
    }
}

/// The address in a pod's name: `10-244-0-5.NAMESPACE.pod.cluster.local`.
fn pod(name: &str) -> Option<Ipv4Addr> {
    let rest = name.strip_suffix(DOMAIN)?.strip_suffix(".pod.")?;
    let (dashed, namespace) = rest.split_once('.')?;
    let address = dashed.replace('-', ".").parse::<IpAddr>().ok()?;
    match address {
        IpAddr::V4(address) if !namespace.contains('.') => Some(address),
        _ => None,
    }
}

/// The items of a list that may be absent.
trait Items {
    fn items(&self) -> impl Iterator<Item = &Value>;
}

impl Items for Value {
    fn items(&self) -> impl Iterator<Item = &Value> {
        self.as_array().into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn directory() -> Directory {
        let metadata = |name: &str| json!({"name": name, "namespace": "default"});
        let port = json!({"name": "http", "port": 80, "protocol": "TCP"});
        let services = [
            json!({"metadata": metadata("web"),
                   "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7", "ports": [port]}}),
            json!({"metadata": metadata("each"), "spec": {"clusterIP": "None"}}),
            json!({"metadata": metadata("empty"), "spec": {"clusterIP": "None"}}),
            json!({"metadata": metadata("other"),
                   "spec": {"type": "ExternalName", "externalName": "Web.default.svc.cluster.local"}}),
            json!({"metadata": metadata("far"),
                   "spec": {"type": "ExternalName", "externalName": "example.com"}}),
        ];
        let addresses = json!([{"ip": "10.244.0.2", "hostname": "first"}, {"ip": "10.244.1.2"}]);
        let endpoints = [json!({"metadata": metadata("each"),
                                "subsets": [{"addresses": addresses, "ports": [port]}]})];
        Directory::of(&services, &endpoints)
    }

    fn answers(name: &str, kind: RecordType) -> Option<Vec<String>> {
        let found = directory().look_up(name, kind)?;
        Some(found.iter().map(|record| record.data.to_string()).collect())
    }

    #[test]
    fn a_service_has_its_address_its_ports_and_the_way_back() {
        let web = "web.default.svc.cluster.local";
        assert_eq!(answers(web, RecordType::A).unwrap(), ["10.96.0.7"]);
        assert!(answers(web, RecordType::AAAA).unwrap().is_empty(), "the name exists");
        let port = answers(&format!("_http._tcp.{web}"), RecordType::SRV).unwrap();
        assert_eq!(port, ["0 100 80 web.default.svc.cluster.local."]);
        let back = answers("7.0.96.10.in-addr.arpa.", RecordType::PTR).unwrap();
        assert_eq!(back, [format!("{web}.")]);
    }

    #[test]
    fn a_headless_service_has_its_endpoints() {
        let each = "each.default.svc.cluster.local";
        assert_eq!(answers(each, RecordType::A).unwrap(), ["10.244.0.2", "10.244.1.2"]);
        assert_eq!(answers(&format!("first.{each}"), RecordType::A).unwrap(), ["10.244.0.2"]);
        assert_eq!(answers(&format!("10-244-1-2.{each}"), RecordType::A).unwrap(), ["10.244.1.2"]);
        assert_eq!(answers(&format!("_http._tcp.{each}"), RecordType::SRV).unwrap().len(), 2);
        let empty = answers("empty.default.svc.cluster.local", RecordType::A).unwrap();
        assert!(empty.is_empty());
    }

    #[test]
    fn an_external_name_is_followed_as_far_as_the_cluster_knows() {
        let other = answers("other.default.svc.cluster.local", RecordType::A).unwrap();
        assert_eq!(other.last().unwrap(), "10.96.0.7");
        assert_eq!(other.len(), 2);
        let far = answers("far.default.svc.cluster.local", RecordType::A).unwrap();
        assert_eq!(far, ["example.com."]);
    }

    #[test]
    fn pods_have_names_of_their_addresses_and_unknown_names_do_not_exist() {
        let pod = answers("10-244-0-9.default.pod.cluster.local", RecordType::A).unwrap();
        assert_eq!(pod, ["10.244.0.9"]);
        assert!(answers("default.svc.cluster.local", RecordType::A).unwrap().is_empty());
        for name in ["no.default.svc.cluster.local", "example.com", "1-2.default.pod.cluster.local"]
        {
            assert_eq!(answers(name, RecordType::A), None, "{name}");
        }
    }
}
