//! Connections that go on all the time, and what became of them since the last look.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::wait::{PATIENCE, until};

use super::answers::{
    Answers, FAILED, POOLS, ask, client_of, cluster_ip, count, is_of_servers, only_from,
};

/// The cluster, and what goes on in it all the time.
pub(crate) struct Stage<'a> {
    pub(crate) kubernetes: Kubernetes<'a>,
    pub(crate) load: Load,
    pub(crate) has_last_release: bool,
}

/// Connections from the client of every pool, one after another, in the pods themselves: they go on
/// whatever ends outside.
pub(crate) struct Load {
    /// How many answers were looked at, by pool.
    seen: BTreeMap<&'static str, usize>,
}

impl Load {
    pub(crate) fn start(kubernetes: &Kubernetes<'_>) -> Result<Self> {
        let address = cluster_ip(kubernetes)?;
        let ask = ask(&address);
        let script =
            format!("while sleep 0.1; do {ask}; done < /dev/null >> /tmp/answers 2> /dev/null &");
        for (pool, _) in POOLS {
            kubernetes.kubectl(&["exec", &client_of(pool), "--", "sh", "-c", &script])?;
        }
        Ok(Self { seen: POOLS.map(|(pool, _)| (pool, 0)).into() })
    }

    /// The answers of a pool's client since the last look.
    fn answers(&mut self, kubernetes: &Kubernetes<'_>, pool: &'static str) -> Result<Answers> {
        let seen = self.seen.entry(pool).or_default();
        let new = format!("+{}", *seen + 1);
        let tail = ["exec", &client_of(pool), "--", "tail", "-n", &new, "/tmp/answers"];
        let answers = count(&kubernetes.kubectl(&tail)?);
        *seen += answers.values().sum::<usize>();
        Ok(answers)
    }
}

impl Stage<'_> {
    /// The answers of every pool's client since the last look.
    pub(crate) fn look(&mut self) -> Result<Vec<(&'static str, Answers)>> {
        let look = |(pool, _)| Ok((pool, self.load.answers(&self.kubernetes, pool)?));
        POOLS.into_iter().map(look).collect()
    }

    /// Forgets what was not looked at, until a request of every pool succeeds. The request under way
    /// belongs to the scenario before: to a pod that has just gone, it fails only after curl's 5 s.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.look()?;
        for (pool, _) in POOLS {
            let (load, kubernetes) = (&mut self.load, &self.kubernetes);
            // Not longer: if the scenario before has failed, so may all others.
            until(&format!("an answer in {pool}"), PATIENCE, || {
                let answers = load.answers(kubernetes, pool)?;
                Ok(if is_of_servers(&answers) { Ok(()) } else { Err(format!("{answers:?}")) })
            })?;
        }
        Ok(())
    }

    /// Checks that since the last look no connection of any pool failed or left its pool.
    pub(crate) fn nothing_failed(&mut self) -> Result<()> {
        self.nothing_failed_but_in("")
    }

    /// Like [`nothing_failed`](Self::nothing_failed), where connections of a pool may fail: none may
    /// leave it.
    pub(crate) fn nothing_failed_but_in(&mut self, allowed: &str) -> Result<()> {
        let judge = |(pool, mut answers): (&str, Answers)| {
            let failed = (pool == allowed).then(|| answers.remove(FAILED)).flatten();
            let answered: usize = answers.values().sum();
            eprintln!("    {pool}: {answered} answers, {} failed", failed.unwrap_or(0));
            only_from(pool, &answers)
        };
        self.look()?.into_iter().try_for_each(judge)
    }

    /// Checks that since the last look no connection failed, whoever answered.
    pub(crate) fn none_failed(&mut self) -> Result<()> {
        for (pool, answers) in self.look()? {
            ensure!(is_of_servers(&answers), "in {pool}: {answers:?}");
        }
        Ok(())
    }
}
