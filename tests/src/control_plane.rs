//! A real control plane: etcd, kube-apiserver and, for Services with selectors,
//! kube-controller-manager, in the version in `KUBEBUILDER_ASSETS`.
//!
//! Pods need no kubelet: a test creates them on a node and sets their status, and the controllers
//! make genuine EndpointSlices from them. In a lab the servers run on the fabric, outside every
//! node's cgroup: every node reaches them, the machine's own network does not.

mod access;

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use access::client;
use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use kube::Client;
use kube::api::GetParams;
use kube::core::Request;

use crate::agent::Agent;
use crate::binary::Binary;
use crate::cluster::Cluster;
use crate::prefix::Prefix;
use crate::process::{Running, printed, spawn_logged};
use crate::residue::remove_tree;
use crate::wiring::fabric4;

/// The variable that names the folder of the programs.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// A user with all permissions. A user's token is its name.
pub const ADMINISTRATOR: &str = "administrator";
/// A user with the permissions that a test grants.
pub const AGENT: &str = "agent";
/// A user without permissions.
pub const NOBODY: &str = "nobody";

/// The audit log has all requests of ServiceAccounts, and none of other users.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [
    {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// Flags of kube-apiserver without kubelets.
const WITHOUT_KUBELETS: [&str; 3] = [
    "--service-cluster-ip-range=10.96.0.0/12,fd00:96::/112",
    "--disable-admission-plugins=ServiceAccount",
    // An address of the loopback device cannot be an endpoint of default/kubernetes.
    "--endpoint-reconciler-type=none",
];
/// Flags of kube-apiserver with kubelets. On every address, its certificate is for `localhost` too.
const FOR_KUBELETS: [&str; 4] = [
    "--service-cluster-ip-range=10.96.0.0/12",
    "--bind-address=0.0.0.0",
    "--allow-privileged=true",
    "--kubelet-preferred-address-types=InternalIP",
];

/// The ports of kube-apiserver and etcd, and etcd's for peers, in a lab.
const PORTS: [u16; 3] = [6443, 2379, 2380];

/// How long a program may take to get ready: about ten seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many lines of its log an error quotes.
const QUOTED_LINES: usize = 20;

/// The servers, as child processes. Dropping this ends them and removes their files.
#[derive(Debug)]
pub struct ControlPlane<'a> {
    programs: PathBuf,
    folder: PathBuf,
    /// The lab with the fabric that they run on; `None`: the machine's loopback device.
    pub(crate) lab: Option<&'a Cluster>,
    server: SocketAddr,
    pub(crate) etcd: SocketAddr,
    /// The peer address of etcd.
    pub(crate) peer: SocketAddr,
    /// Whether its nodes have kubelets, and its pods ServiceAccounts.
    has_kubelets: bool,
    /// Further flags of kube-apiserver.
    flags: Vec<String>,
    topology_keys: OnceLock<bool>,
    /// The token of [`AGENT`].
    token: String,
    /// Dropped in this order.
    scheduler: Option<Running>,
    controllers: Option<Running>,
    api_server: Option<Running>,
    pub(crate) database: Option<Running>,
}

impl<'a> ControlPlane<'a> {
    /// Starts etcd and kube-apiserver on the machine's loopback device.
    ///
    /// # Errors
    /// `KUBEBUILDER_ASSETS` does not name these programs, or they do not get ready.
    pub fn on_loopback() -> Result<Self> {
        Self::start(assets()?, Prefix::new().folder(), None, Ipv4Addr::LOCALHOST, free_ports()?)
    }

    /// Starts etcd and kube-apiserver on the fabric of a lab.
    pub fn in_lab(cluster: &'a Cluster) -> Result<Self> {
        let folder = cluster.folder().join("control-plane");
        Self::start(assets()?, folder, Some(cluster), fabric4(), PORTS)
    }

    /// Like [`in_lab`](Self::in_lab), with what kubelets and their pods need: ServiceAccounts,
    /// privileged pods, endpoints of `default/kubernetes`.
    pub fn of_kubelets(cluster: &'a Cluster, programs: &Path) -> Result<Self> {
        let folder = cluster.folder().join("control-plane");
        let programs = programs.to_path_buf();
        let mut plane = Self::prepare(programs, folder, Some(cluster), fabric4(), PORTS)?;
        plane.has_kubelets = true;
        plane.started()
    }

    fn start(
        programs: PathBuf,
        folder: PathBuf,
        lab: Option<&'a Cluster>,
        address: Ipv4Addr,
        ports: [u16; 3],
    ) -> Result<Self> {
        Self::prepare(programs, folder, lab, address, ports)?.started()
    }

    fn prepare(
        programs: PathBuf,
        folder: PathBuf,
        lab: Option<&'a Cluster>,
        address: Ipv4Addr,
        [port, etcd, peer]: [u16; 3],
    ) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            programs,
            folder,
            lab,
            server: SocketAddr::from((address, port)),
            etcd: SocketAddr::from((Ipv4Addr::LOCALHOST, etcd)),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, peer)),
            has_kubelets: false,
            flags: Vec::new(),
            topology_keys: OnceLock::new(),
            token: AGENT.to_owned(),
            scheduler: None,
            controllers: None,
            api_server: None,
            database: None,
        })
    }

    fn started(mut self) -> Result<Self> {
        self.start_etcd()?;
        self.start_api_server()?;
        Ok(self)
    }

    pub(crate) fn spawn(&self, program: &str, arguments: &[String]) -> Result<Running> {
        let path = self.programs.join(program);
        ensure!(
            path.is_file(),
            "there is no {program} in {}, which {ASSETS} names",
            self.programs.display()
        );
        let mut command = Command::new(path);
        command.args(arguments);
        if let Some(cluster) = self.lab {
            cluster.beyond(&mut command)?;
        }
        spawn_logged(&mut command, &self.log(program))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn log(&self, program: &str) -> PathBuf {
        self.folder.join(program).with_extension("log")
    }

    /// Replaces the token of [`AGENT`] from kube-apiserver's next start on.
    pub fn set_token(&mut self, token: &str) {
        token.clone_into(&mut self.token);
    }

    /// Adds a flag to kube-apiserver's command line from its next start on.
    pub fn set(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Starts kube-apiserver, also again, and waits until it is ready.
    ///
    /// # Errors
    /// It does not get ready; the error quotes the end of its log.
    pub fn start_api_server(&mut self) -> Result<()> {
        let tokens = format!(
            "{ADMINISTRATOR},{ADMINISTRATOR},1,system:masters\n\
             {},{AGENT},2\n\
             {NOBODY},{NOBODY},3\n",
            self.token,
        );
        fs::write(self.path("tokens.csv"), tokens)?;
        // kube-apiserver makes its key and certificate here once. The key may also sign
        // ServiceAccount tokens: no Pod of a test has one.
        let key = self.path("certificates/apiserver.key");
        let mut arguments = vec![
            format!("--etcd-servers=http://{}", self.etcd),
            format!("--advertise-address={}", self.server.ip()),
            format!("--secure-port={}", self.server.port()),
            format!("--cert-dir={}", self.path("certificates")),
            format!("--token-auth-file={}", self.path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        ];
        arguments.extend(self.gates()?.map(str::to_owned));
        if self.has_kubelets {
            arguments.extend(FOR_KUBELETS.map(str::to_owned));
        } else {
            fs::write(self.path("audit-policy.json"), AUDIT_POLICY)?;
            arguments.extend(WITHOUT_KUBELETS.map(str::to_owned));
            arguments.extend([
                format!("--bind-address={}", self.server.ip()),
                format!("--audit-policy-file={}", self.path("audit-policy.json")),
                format!("--audit-log-path={}", self.path("audit.log")),
            ]);
        }
        arguments.extend(self.flags.iter().cloned());
        self.api_server = Some(self.spawn("kube-apiserver", &arguments)?);
        self.wait_until_ready()
    }

    /// The address of kube-apiserver.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.server.ip()
    }

    /// The address and port of kube-apiserver.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Waits until kube-apiserver is ready.
    ///
    /// # Errors
    /// It does not get ready; the error quotes the end of its log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = self.ask(ready) else {
                return Ok(());
            };
            let server = self.api_server.as_mut().context("kube-apiserver does not run")?;
            let ended = server.ended().context("cannot wait for kube-apiserver")?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.log("kube-apiserver")).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let quoted = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
                bail!("kube-apiserver is not ready ({error:#}; ended: {ended:?}):\n{quoted}");
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether kube-apiserver serves now, with its database.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ask(ready).is_ok()
    }

    /// Ends kube-apiserver with SIGKILL.
    pub fn kill_api_server(&mut self) {
        self.api_server = None;
    }

    /// Ends kube-controller-manager and kube-scheduler with SIGKILL.
    pub fn kill_controllers(&mut self) {
        self.controllers = None;
        self.scheduler = None;
    }

    /// Starts kube-controller-manager with only the controller of EndpointSlices.
    pub fn start_controllers(&mut self) -> Result<()> {
        self.start_controllers_with(&[])
    }

    /// Like [`start_controllers`](Self::start_controllers); `--controllers=…` adds controllers.
    pub fn start_controllers_with(&mut self, flags: &[&str]) -> Result<()> {
        let kubeconfig = self.kubeconfig(ADMINISTRATOR)?;
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--controllers=endpointslice".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        arguments.extend(self.gates()?.map(str::to_owned));
        arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        self.controllers = Some(self.spawn("kube-controller-manager", &arguments)?);
        Ok(())
    }

    /// Starts kube-controller-manager with all its controllers, and kube-scheduler.
    pub fn start_all_controllers(&mut self) -> Result<()> {
        let key = self.path("certificates/apiserver.key");
        let certificate = self.path("certificates/apiserver.crt");
        self.start_controllers_with(&[
            "--controllers=*",
            &format!("--service-account-private-key-file={key}"),
            &format!("--root-ca-file={certificate}"),
        ])?;
        let kubeconfig = self.kubeconfig(ADMINISTRATOR)?;
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
        ];
        // 1.20 also serves without TLS, on another port.
        arguments.extend(self.has_topology_keys()?.then(|| "--port=0".to_owned()));
        self.scheduler = Some(self.spawn("kube-scheduler", &arguments)?);
        Ok(())
    }

    /// The feature gates to set. A server exits on an unknown gate: `ServiceTopology` exists in
    /// 1.17–1.21; `IPv6DualStack` is on by default since 1.21, and unknown since 1.25.
    pub(crate) fn gates(&self) -> Result<Option<&'static str>> {
        let gates = "--feature-gates=ServiceTopology=true,IPv6DualStack=true";
        Ok(self.has_topology_keys()?.then_some(gates))
    }

    /// Whether this is Kubernetes 1.17–1.21, which has `spec.topologyKeys` and no later field.
    pub fn has_topology_keys(&self) -> Result<bool> {
        // Starting the program takes long.
        if let Some(known) = self.topology_keys.get() {
            return Ok(*known);
        }
        let version = printed(Command::new(self.programs.join("kube-apiserver")).arg("--version"))?;
        let has = (17..=21).any(|minor| version.contains(&format!("v1.{minor}.")));
        Ok(*self.topology_keys.get_or_init(|| has))
    }

    /// A version of EndpointSlices that this server has: `v1` since 1.21, `v1beta1` before 1.25.
    pub fn slice_version(&self) -> Result<&'static str> {
        let old = self.has_topology_keys()?;
        Ok(if old { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" })
    }

    /// Prepares the agent of a node, with the permissions of [`AGENT`].
    pub fn agent(&self, binary: &Binary, node: &str) -> Result<Agent<'a>> {
        let cluster = self.lab.context("only nodes of a lab have agents")?;
        Agent::prepare_from(binary, cluster, node, ("--kubeconfig", &self.kubeconfig(AGENT)?))
    }
}

impl Drop for ControlPlane<'_> {
    fn drop(&mut self) {
        self.scheduler = None;
        self.controllers = None;
        self.api_server = None;
        self.database = None;
        if thread::panicking() && self.lab.is_none() {
            eprintln!("the control plane's logs are kept in {}", self.folder.display());
        } else if let Err(error) = remove_tree(&self.folder) {
            eprintln!("{error:#}");
        }
    }
}

/// `readyz`: the server answers much sooner than roles are in effect and controllers are served.
async fn ready(client: Client) -> Result<()> {
    let request = Request::new("").get("readyz", &GetParams::default())?;
    client.request_text(request).await?;
    Ok(())
}

/// The folder of programs that the environment names.
fn assets() -> Result<PathBuf> {
    let Some(programs) = env::var_os(ASSETS).filter(|folder| !folder.is_empty()) else {
        bail!(
            "{ASSETS} does not name a folder with etcd and kube-apiserver: \
             `cargo xtask test --only control-plane` builds one and sets it"
        )
    };
    Ok(programs.into())
}

/// Three different ports: all are taken before one is given back.
fn free_ports() -> Result<[u16; 3]> {
    let listener = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port");
    let taken = [listener()?, listener()?, listener()?];
    let [a, b, c] = taken.each_ref().map(TcpListener::local_addr);
    Ok([a?.port(), b?.port(), c?.port()])
}
