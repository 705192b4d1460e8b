//! Flags about frontends: which addresses of a Service are translated, and for whom.

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use topo_lb_agent::app::{MasqueradeBy, Replacement};
use topo_lb_core::cluster::NodePortAddresses;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kernel::datapath::programs::object::MASQUERADE_MARK;
use topo_lb_kernel::device::Pattern;

/// Which addresses of a Service are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Frontends {
    /// ClusterIPs.
    #[default]
    ClusterIp,
    /// Also node ports at addresses of this node, load balancer IPs, and external IPs. They lead where
    /// the ClusterIP leads.
    All,
}

/// Whether packets of clients outside are sent on to the endpoint's node as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DirectReturn {
    /// To no node: connections to endpoints of other nodes get an address of this node as their source.
    #[default]
    Off,
    /// To each node for which a probe has shown that the network carries that.
    Auto,
}

/// Flags of `topo-lb agent` about frontends.
#[derive(Debug, Args)]
pub struct FrontendArgs {
    /// Which addresses of a Service are translated for clients of this node. kube-proxy serves all others
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_FRONTENDS")]
    pub frontends: Frontends,
    /// With --frontends all: the addresses of this node at which clients dial node ports. `primary`:
    /// the source of its packets by the default route; `all`; or ranges, separated by commas
    #[arg(
        long,
        value_name = "ADDRESSES",
        env = "TOPO_LB_NODEPORT_ADDRESSES",
        default_value = "primary"
    )]
    pub nodeport_addresses: NodePortAddresses,
    /// With --frontends all: ranges in which `externalIPs` are translated, separated by commas. Anybody
    /// who may write a Service may write any address there. Default: none
    #[arg(long, value_name = "RANGES", env = "TOPO_LB_EXTERNAL_IP_RANGES", value_delimiter = ',')]
    pub external_ip_ranges: Vec<IpNet>,
    /// Do all that kube-proxy does, on a node without it: --frontends all, and clients outside of the node
    #[arg(long, env = "TOPO_LB_KUBE_PROXY_REPLACEMENT")]
    pub kube_proxy_replacement: bool,
    /// With --kube-proxy-replacement: the devices by which clients outside come in. Names, with * for any
    /// text, separated by commas. Default: all with an address of the node that are no end of a Pod's
    #[arg(long, value_name = "PATTERNS", env = "TOPO_LB_EXTERNAL_DEVICES", value_delimiter = ',')]
    pub external_devices: Vec<Pattern>,
    /// With --kube-proxy-replacement: the bit of packet marks that asks for masquerade. No other program
    /// on this node may use it
    #[arg(long, value_name = "BIT", env = "TOPO_LB_MASQUERADE_MARK", value_parser = mark,
          default_value_t = MASQUERADE_MARK)]
    pub masquerade_mark: u32,
    /// With --kube-proxy-replacement: who gives connections from outside to endpoints of other nodes an
    /// address of this node as their source
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_MASQUERADE")]
    pub masquerade: MasqueradeBy,
    /// With --kube-proxy-replacement: send packets of clients outside to load balancer and external IPs on to the
    /// endpoint's node as they are; that node answers the client itself. `auto`: where a probe has shown that the
    /// network carries it
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_DIRECT_RETURN")]
    pub direct_return: DirectReturn,
}

/// A mark of one bit, decimal or with 0x.
fn mark(text: &str) -> Result<u32, String> {
    let mark = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    mark.filter(|mark| mark.is_power_of_two())
        .ok_or_else(|| "a mark has one bit of 32: 1, 2, 4 … 0x80000000".to_owned())
}

impl FrontendArgs {
    /// Which frontends besides ClusterIPs are handled; `None`: none.
    #[must_use]
    pub fn exposing(&self) -> Option<Exposing> {
        (self.frontends == Frontends::All || self.kube_proxy_replacement).then(|| Exposing {
            node_ports: self.nodeport_addresses.clone(),
            external_ips: self.external_ip_ranges.clone(),
            outside: self.kube_proxy_replacement,
            direct_return: self.direct_return == DirectReturn::Auto,
        })
    }

    /// What clients outside need; `None`: they are left to kube-proxy.
    #[must_use]
    pub fn replacement(&self) -> Option<Replacement> {
        self.kube_proxy_replacement.then(|| Replacement {
            devices: self.external_devices.clone(),
            masquerade_mark: self.masquerade_mark,
            masquerade: self.masquerade,
        })
    }
}
