//! What the agent does, as its flags say.

use anyhow::{Context as _, bail};
use topo_lb_common::maps;

use super::{AgentArgs, SourceArgs, Switch};
use crate::app::{Config, Source};
use crate::datapath::Options;
use crate::datapath::host::netns;
use crate::datapath::programs::object::AllFrontends;
use crate::exclusion::Rules;
use crate::plan::Capacity;
use crate::{admin, health};

impl AgentArgs {
    /// What the agent does.
    ///
    /// # Errors
    /// Nobody says which node this is, or its network namespace cannot be read.
    pub fn config(self) -> anyhow::Result<Config> {
        let serves_guests = !self.tc_devices.is_empty();
        let has_tc = serves_guests || self.frontends.kube_proxy_replacement;
        let connections = if has_tc { self.max_connections } else { 0 };
        let (exposing, replacement) = (self.frontends.exposing(), self.frontends.replacement());
        let masquerade_mark = replacement.as_ref().map_or(0, |it| it.masquerade_mark);
        let health = self.health();
        let all_frontends = exposing.as_ref().map(|_| {
            let host_netns =
                netns::cookie().context("cannot read the cookie of this network namespace")?;
            anyhow::Ok(AllFrontends { masquerade_mark, host_netns })
        });
        let all_frontends = all_frontends.transpose()?;
        let exclusions = Rules::new(self.exclude_namespaces, self.exclude_annotated_pods);
        Ok(Config {
            exposing,
            replacement,
            node: node_name(self.node_name, "--node-name")?.into(),
            source: self.source.of_agent(),
            state_dir: self.state_dir,
            scope: self.scope,
            when_full: self.when_full,
            devices: self.tc_devices,
            tolerated: self.tolerate_programs,
            admin: admin::Options {
                listen: self.listen,
                metrics_listen: self.metrics_listen,
                probe_socket: self.probe_socket,
                metrics_services: self.metrics_services as usize,
            },
            health,
            dns: self.dns.options(),
            terminate_tcp: self.terminate_tcp,
            datapath: Options {
                pin_dir: self.pin.pin_dir,
                cgroup_root: self.cgroup_root,
                capacity: Capacity {
                    services: self.max_services,
                    slots: self.max_endpoints,
                    members: self.max_endpoints,
                    flows: self.max_flows,
                    connections,
                    // More than there are frontends, so that each can be denied.
                    sources: match all_frontends {
                        Some(_) => self.max_services.max(maps::MOST_SOURCES),
                        None => 0,
                    },
                    ..Capacity::default()
                },
                tcp_peer: self.tcp_peer,
                accounting: self.accounting == Switch::On,
                exclusions: !exclusions.is_empty(),
                observe: self.observe,
                serves_guests,
                tc_attach: self.tc_attach,
                all_frontends,
            },
            exclusions,
        })
    }

    /// Where load balancers get answers; `None`: nowhere.
    fn health(&self) -> Option<health::Options> {
        self.frontends.kube_proxy_replacement.then(|| health::Options {
            listen: self.healthz.healthz_bind_address,
            node_ports: self.frontends.nodeport_addresses.clone(),
        })
    }
}

impl SourceArgs {
    fn of_agent(self) -> Source {
        let target = self.target();
        self.manifests.map_or(Source::Kube(target), Source::Manifests)
    }
}

/// The node that `flag`, here `given`, names, or else NODE_NAME.
///
/// # Errors
/// Neither does.
pub fn node_name(given: Option<String>, flag: &str) -> anyhow::Result<String> {
    match given.or_else(|| std::env::var("NODE_NAME").ok()).filter(|name| !name.is_empty()) {
        Some(node) => Ok(node),
        None => bail!("which node is this? Say it with {flag} NAME or NODE_NAME"),
    }
}
