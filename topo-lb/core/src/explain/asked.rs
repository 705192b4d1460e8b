//! Which Services and which of their ports somebody asks for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Port, ServicePort, Spread};

/// What was asked for: names of Services, and of each the names or numbers of its ports; none: all of them.
#[derive(Debug, Default)]
pub struct Asked<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Asked<'a> {
    /// From `NAMESPACE/NAME` and `NAMESPACE/NAME:PORT`.
    #[must_use]
    pub fn new(texts: impl IntoIterator<Item = &'a String>) -> Self {
        let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let mut whole = BTreeSet::new();
        for text in texts {
            let _ = match text.rsplit_once(':') {
                Some((service, port)) => all.entry(service).or_default().insert(port),
                None => whole.insert(text.as_str()),
            };
        }
        all.extend(whole.into_iter().map(|service| (service, BTreeSet::new())));
        Self(all)
    }

    /// The Services, as they were written.
    #[must_use]
    pub fn services(&self) -> Vec<String> {
        self.0.keys().map(|&service| service.to_owned()).collect()
    }

    /// Keeps of all `rows` those of ports that were asked for.
    ///
    /// # Errors
    /// There is no such port.
    pub fn keep<T>(
        &self,
        rows: &mut Vec<T>,
        of: impl Fn(&T) -> (&str, &str, &Port),
    ) -> Result<(), String> {
        let is = |row: &T, service: &str, port: &str| {
            let (namespace, name, own) = of(row);
            service.split_once('/') == Some((namespace, name))
                && (own.name == port || own.port.to_string() == port)
        };
        for (service, ports) in &self.0 {
            if let Some(port) =
                ports.iter().find(|port| !rows.iter().any(|row| is(row, service, port)))
            {
                return Err(format!("the Service {service} has no port {port:?}"));
            }
        }
        rows.retain(|row| {
            self.0.iter().all(|(service, ports)| {
                let (namespace, name, _) = of(row);
                ports.is_empty()
                    || service.split_once('/') != Some((namespace, name))
                    || ports.iter().any(|port| is(row, service, port))
            })
        });
        Ok(())
    }
}

impl ServicePort {
    /// Namespace and name of the Service, and the port.
    #[must_use]
    pub fn place(&self) -> (&str, &str, &Port) {
        (&self.namespace, &self.name, &self.port)
    }
}

impl Spread {
    /// Namespace and name of the Service, and the port.
    #[must_use]
    pub fn place(&self) -> (&str, &str, &Port) {
        (&self.namespace, &self.name, &self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ports_that_were_named_are_left_of_a_service() {
        type Row = (&'static str, Port);
        fn place((name, port): &Row) -> (&str, &str, &Port) {
            ("d", name, port)
        }
        let port = |name: &str, port| Port { name: name.to_owned(), port, protocol: "TCP" };
        let all = [("a", port("http", 80)), ("a", port("https", 443)), ("b", port("", 80))];
        for (asked, left) in [
            (&[][..], Ok(vec![80, 443, 80])),
            (&["d/a", "d/b"], Ok(vec![80, 443, 80])),
            (&["d/a:http", "d/b"], Ok(vec![80, 80])),
            (&["d/a:443", "d/b"], Ok(vec![443, 80])),
            (&["d/a:443", "d/a:http", "d/b:80"], Ok(vec![80, 443, 80])),
            (&["d/a", "d/a:http", "d/b"], Ok(vec![80, 443, 80])),
            (&["d/a:metrics"], Err("the Service d/a has no port \"metrics\"".to_owned())),
        ] {
            let asked: Vec<String> = asked.iter().map(|&it| it.to_owned()).collect();
            let mut rows = all.to_vec();
            let kept = Asked::new(&asked).keep(&mut rows, place);
            let ports: Vec<u16> = rows.iter().map(|(_, port)| port.port).collect();
            assert_eq!(kept.map(|()| ports), left, "{asked:?}");
        }
    }
}
