//! etcd and kube-apiserver, as child processes in a folder of their own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to get ready.
const PATIENCE: Duration = Duration::from_secs(120);
/// May do everything.
pub(crate) const ADMINISTRATOR: &str = "administrator";
/// May do nothing.
pub(crate) const NOBODY: &str = "nobody";

/// A control plane without controllers; gone at the end of the test.
pub(crate) struct Plane {
    programs: PathBuf,
    folder: PathBuf,
    etcd_port: u16,
    port: u16,
    etcd: Option<Child>,
    api_server: Option<Child>,
}

impl Plane {
    /// Starts the programs of the folder that `KUBEBUILDER_ASSETS` names.
    pub(crate) fn start() -> Self {
        let programs = std::env::var_os("KUBEBUILDER_ASSETS")
            .expect("KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver");
        let name = format!("topo-lb-control-plane-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut plane = Self {
            programs: programs.into(),
            folder,
            etcd_port: free_port(),
            port: free_port(),
            etcd: None,
            api_server: None,
        };
        plane.start_etcd();
        plane.start_api_server();
        plane
    }

    fn spawn(&self, program: &str, arguments: &[String]) -> Child {
        let log = fs::File::create(self.folder.join(format!("{program}.log"))).unwrap();
        Command::new(self.programs.join(program))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {program}: {error}"))
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn start_etcd(&mut self) {
        let (client, peer) = (self.etcd_port, free_port());
        self.etcd = Some(self.spawn(
            "etcd",
            &[
                format!("--data-dir={}", self.path("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        ));
    }

    /// Starts kube-apiserver, and waits until it is ready.
    pub(crate) fn start_api_server(&mut self) {
        let tokens = format!("{ADMINISTRATOR},admin,1,system:masters\n{NOBODY},nobody,2\n");
        fs::write(self.path("tokens.csv"), tokens).unwrap();
        let key = self.path("sa.key");
        if !Path::new(&key).exists() {
            let made = Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).output();
            assert!(made.expect("openssl must be installed").status.success());
        }
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port),
            format!("--cert-dir={}", self.path("certs")),
            format!("--token-auth-file={}", self.path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        ];
        if self.has_topology_keys() {
            arguments.push("--feature-gates=ServiceTopology=true".to_owned());
        }
        self.api_server = Some(self.spawn("kube-apiserver", &arguments));
        let start = Instant::now();
        while !self.is_ready() {
            let ended = self.api_server.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() || start.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.path("kube-apiserver.log")).unwrap_or_default();
                let last = log.lines().rev().take(20).collect::<Vec<_>>();
                panic!("kube-apiserver is not ready ({ended:?}); last lines first: {last:#?}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn is_ready(&self) -> bool {
        let status = Command::new("curl")
            .args(["--silent", "--fail", "--insecure", "--output", "/dev/null"])
            .args(["--header", &format!("Authorization: Bearer {ADMINISTRATOR}")])
            .arg(format!("https://127.0.0.1:{}/readyz", self.port))
            .status();
        status.expect("curl must be installed").success()
    }

    /// Whether this is Kubernetes 1.17–1.21, which know `spec.topologyKeys` and no later field.
    pub(crate) fn has_topology_keys(&self) -> bool {
        let output = Command::new(self.programs.join("kube-apiserver")).arg("--version").output();
        let output = output.expect("kube-apiserver must be in KUBEBUILDER_ASSETS");
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        (17..=21).any(|minor| version.contains(&format!("v1.{minor}.")))
    }

    /// Kills kube-apiserver as a crash would.
    pub(crate) fn kill_api_server(&mut self) {
        let mut child = self.api_server.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A kubeconfig with this token, written to a file of its own.
    pub(crate) fn kubeconfig(&self, token: &str) -> PathBuf {
        let path = self.folder.join(format!("{token}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             contexts: [{{name: here, context: {{cluster: here, user: me}}}}]\n\
             users: [{{name: me, user: {{token: {token}}}}}]\n\
             clusters: [{{name: here, cluster: {{server: \"https://127.0.0.1:{}\", \
             certificate-authority: certs/apiserver.crt}}}}]\n",
            self.port
        );
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        for child in [&mut self.api_server, &mut self.etcd].into_iter().flatten() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            println!("logs are kept in {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
