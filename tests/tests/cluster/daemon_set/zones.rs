//! OpenYurt's tutorial after openyurt#2550: the nodes of a pool have its name as their zone.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::scene::{KEYS, ZONE};

use super::answers::{
    FAILED, POOLS, SERVICE, ask, asking, client_of, cluster_ip, count, only_from,
    pods_stay_in_their_pool, shell_on,
};

/// How long a node has no route to the API server: less than the controllers take to give it up.
const CUT_OFF: Duration = Duration::from_secs(15);

/// Gives nodes their pool as their zone. Endpoints have it if they are made after that.
pub(crate) fn name_zones_after_pools(kubernetes: &Kubernetes<'_>) -> Result<()> {
    for (pool, node) in POOLS {
        kubernetes.kubectl(&["label", "--overwrite", "node", node, &format!("{ZONE}={pool}")])?;
    }
    Ok(())
}

/// Takes OpenYurt's annotation from the Service, and gives it the key of the zone.
pub(crate) fn close_by_zone(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let keys = format!("{KEYS}={ZONE}");
    let annotate = ["annotate", "service", SERVICE, "openyurt.io/topologyKeys-", &keys];
    kubernetes.kubectl(&annotate).map(drop)
}

/// The first pool's node loses its route to the API server: its pods and its own processes still reach
/// their pool alone.
pub(crate) fn a_pool_that_is_cut_off_stays_closed(
    kubernetes: &mut Kubernetes<'_>,
    cluster: &Cluster,
) -> Result<()> {
    pods_stay_in_their_pool(kubernetes)?;
    let (pool, node) = POOLS[0];
    let address = cluster_ip(kubernetes)?;
    let server = kubernetes.plane().server();
    let route = |change: &str| {
        cluster.ip_on(node, &[format!("route {change} unreachable {}", server.ip())])
    };
    // The API server cannot be asked what the pod says until the node is back.
    let while_away = format!(
        "(for i in $(seq {}); do {}; sleep 0.2; done) > /tmp/answers 2>&1 &",
        5 * (CUT_OFF.as_secs() + 10),
        ask(&address)
    );
    let client = client_of(pool);
    kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", &while_away])?;
    route("add")?;
    let worker = kubernetes.worker(node)?;
    let reach = format!("curl -sk -o /dev/null -m 2 https://{server} || echo {FAILED}");
    let of_the_node = (|| {
        ensure!(shell_on(worker, &reach)?.contains(FAILED), "the node reaches the API server");
        sleep(CUT_OFF);
        shell_on(worker, &asking(&address))
    })();
    route("del")?;
    only_from(pool, &count(&of_the_node?))?;
    kubernetes.wait_for_nodes()?;
    let of_the_pod = kubernetes.kubectl(&["exec", &client, "--", "cat", "/tmp/answers"])?;
    only_from(pool, &count(&of_the_pod))?;
    pods_stay_in_their_pool(kubernetes)
}
