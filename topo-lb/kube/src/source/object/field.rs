//! Fields that several kinds share.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::de::{self, Deserializer, IgnoredAny, Visitor};
use serde::{Deserialize, de::Error as _};
use topo_lb_core::cluster::mesh::Pairs;

use serde_json::Value;
use uuid::Uuid;

use super::names::Names;
use topo_lb_core::cluster::{Created, Labels};

/// The namespace of objects that name none, as with `kubectl apply`.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// Reads a field where `null` means absent.
pub(super) fn or_default<'de, D, T>(field: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// The value of an annotation. Kubernetes allows only strings. Other values in a file, such as `2`
/// for `"2"`, are taken as written and do not make the object unreadable.
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(field)? {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
}

/// Labels or annotations; values other than strings are taken as written.
#[derive(Default)]
pub(super) struct Loose(pub(super) Pairs);

impl Loose {
    /// As a state keeps labels.
    pub(super) fn labels(&self, names: &mut Names) -> Labels {
        self.0.iter().map(|(key, value)| (names.share(key), names.share(value))).collect()
    }
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        let pairs: BTreeMap<String, Option<Text>> = or_default(field)?;
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key, value?.0)));
        Ok(Self(pairs.collect()))
    }
}

/// `metadata`, with the labels `L` and annotations `A` that the kind needs.
#[derive(Deserialize)]
#[serde(bound(deserialize = "L: Default + Deserialize<'de>, A: Default + Deserialize<'de>"))]
#[serde(expecting = "an object")]
pub(super) struct Metadata<L, A = IgnoredAny> {
    #[serde(deserialize_with = "name")]
    pub(super) name: String,
    #[serde(default)]
    namespace: Option<String>,
    /// Any value, so that an invalid UID does not make the object unreadable.
    #[serde(default)]
    uid: Value,
    /// As `uid`.
    #[serde(default, rename = "creationTimestamp")]
    created: Value,
    /// As `uid`.
    #[serde(default)]
    generation: Value,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) labels: L,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) annotations: A,
}

impl<L, A> Metadata<L, A> {
    pub(super) fn namespace(&self) -> &str {
        match self.namespace.as_deref() {
            None | Some("") => DEFAULT_NAMESPACE,
            Some(namespace) => namespace,
        }
    }

    pub(super) fn uid(&self) -> Option<Uuid> {
        self.uid.as_str().and_then(uid)
    }

    /// `generation`; 0 if there is none.
    pub(super) fn generation(&self) -> i64 {
        self.generation.as_i64().unwrap_or_default()
    }

    pub(super) fn created(&self) -> Created {
        self.created.as_str().unwrap_or_default().into()
    }
}

/// Reads a UID as Kubernetes writes it; `None` for anything else.
fn uid(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text).ok().filter(|uid| uid.to_string() == text)
}

fn name<'de, D: Deserializer<'de>>(field: D) -> Result<String, D::Error> {
    let name = String::deserialize(field)?;
    if name.is_empty() { Err(D::Error::custom("is empty")) } else { Ok(name) }
}

/// The label that gives a Service or slice to another proxy.
pub(super) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The label of Services and slices that are not for proxies.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// The labels of slices that say whose they are.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OwnLabels {
    #[serde(rename = "kubernetes.io/service-name")]
    pub(super) service: Option<String>,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(super) proxy: Option<IgnoredAny>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(super) headless: Option<IgnoredAny>,
    #[serde(rename = "endpointslice.kubernetes.io/managed-by")]
    pub(super) managed_by: Option<String>,
}

/// The value of `managed-by` for slices that are copied from Endpoints
/// (pkg/controller/endpointslicemirroring/endpointslicemirroring_controller.go).
pub(super) const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";

/// A port number, 1–65535.
#[derive(Clone, Copy)]
pub(super) struct PortNumber(pub(super) u16);

impl<'de> Deserialize<'de> for PortNumber {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = PortNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port number (1–65535)")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PortNumber, E> {
                match u16::try_from(number) {
                    Ok(port) if port != 0 => Ok(PortNumber(port)),
                    _ => Err(E::custom(format_args!("{number} is not a port (1–65535)"))),
                }
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PortNumber, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
            }
        }
        field.deserialize_any(Number)
    }
}

/// Parses an address like Kubernetes (`ParseIPSloppy`), which keeps such input: IPv4 octets are
/// decimal even with leading zeros, and an IPv4-mapped IPv6 address is an IPv4 address.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical()),
        Err(_) => zero_padded(text).map(IpAddr::V4),
    }
}

fn zero_padded(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let digits = parts.next()?;
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        *octet = digits.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_uid_as_kubernetes_writes_it_is_read() {
        let text = "0f2a5f0e-9d2b-4a7c-8f1e-00000000abcd";
        assert_eq!(uid(text).map(|uid| uid.to_string()).as_deref(), Some(text));
        let upper = text.to_uppercase();
        for text in ["", "web", &text.replace('-', ""), &upper, &format!("{text}ef"), "ü-ü-ü"] {
            assert_eq!(uid(text), None, "{text:?}");
        }
    }

    #[test]
    fn addresses_read_as_kubernetes_reads_them() {
        for (text, meant) in [
            ("10.96.0.1", Some("10.96.0.1")),
            ("010.096.000.001", Some("10.96.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("", None),
            ("None", None),
            ("10.96.0", None),
            ("10.96.0.256", None),
            ("10.96.0.1.1", None),
            ("10.96.+1.1", None),
            ("fe80::1%eth0", None),
            ("10.96.0.0/16", None),
        ] {
            assert_eq!(address(text), meant.map(|meant| meant.parse().unwrap()), "{text}");
        }
    }
}
