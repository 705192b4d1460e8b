//! Ways to the API server: kubeconfigs, programs with one, clients, the audit log.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result};
use fs_err as fs;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use crate::process::printed;

use super::{ADMINISTRATOR, ControlPlane};

impl ControlPlane<'_> {
    /// A kubeconfig with this token, in a file named after it.
    pub fn kubeconfig(&self, token: &str) -> Result<PathBuf> {
        self.kubeconfig_of(token, token)
    }

    /// A kubeconfig with this token, in a file with this name.
    pub fn kubeconfig_of(&self, name: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig_at(name, token, &format!("https://{}", self.server))
    }

    /// A kubeconfig with this token for this URL, in a file with this name.
    pub fn kubeconfig_at(&self, name: &str, token: &str, url: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             contexts: [{{name: here, context: {{cluster: here, user: me}}}}]\n\
             users: [{{name: me, user: {{token: {token}}}}}]\n\
             clusters: [{{name: here, cluster: {{server: \"{url}\", \
             certificate-authority: certificates/apiserver.crt}}}}]\n"
        );
        // Not again: a server that has just been started may be reading it.
        if fs::read_to_string(&path).is_ok_and(|known| known == text) {
            return Ok(path);
        }
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Runs `program` with the administrator's `KUBECONFIG`, next to the API server: its output.
    ///
    /// # Errors
    /// It fails; the error has its output.
    pub fn administer(&self, program: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.env("KUBECONFIG", self.kubeconfig(ADMINISTRATOR)?).env("HOME", &self.folder);
        if let Some(cluster) = self.lab {
            cluster.beyond(&mut command)?;
        }
        printed(&mut command)
    }

    /// Runs `work` with a client of the administrator, where the API server runs.
    pub fn ask<T: Send>(&self, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        let kubeconfig = self.kubeconfig(ADMINISTRATOR)?;
        let ask = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { work(client(&kubeconfig).await?).await })
        };
        match self.lab {
            Some(cluster) => cluster.fabric().run(ask),
            // The caller may be in a runtime.
            None => thread::scope(|scope| {
                let thread = scope.spawn(ask);
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// The requests of ServiceAccounts in the API server's audit log (`audit.k8s.io/v1`).
    pub fn audited(&self) -> Result<Vec<Value>> {
        let path = self.path("audit.log");
        let text = fs::read_to_string(&path)?;
        text.lines().map(|line| serde_json::from_str(line).context("not an audit event")).collect()
    }
}

/// A client configured by a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
