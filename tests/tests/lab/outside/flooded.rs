//! Frames for another host, which a switch floods to all.

use std::io::ErrorKind;

use anyhow::{Result, ensure};
use topo_lb_tests::scene::{FOLLOWS, HERE, at};
use topo_lb_tests::traffic::Via;

use super::scene::{BALANCER, NODE, connect, nft, play};

#[test]
fn a_flooded_frame_for_another_host_is_answered_by_nobody() -> Result<()> {
    play(|scene, client| {
        // A node that took the frame for its own would refuse.
        scene.set_endpoints("web", &[])?;
        for to in BALANCER {
            client.wait_for(Via::Http, at(to)?, &[], FOLLOWS)?;
        }
        // No bridge knows this address.
        let stranger = "02:54:4c:00:00:77";
        scene.cluster.node_netns(HERE)?.nft(&format!(
            "table netdev flooded {{
                counter frames {{ }}
                chain ingress {{
                    type filter hook ingress device eth0 priority 0
                    ether daddr {stranger} counter name frames
                }}
            }}"
        ))?;
        let fabric = scene.cluster.fabric();
        let line = |to| format!("neigh replace {to} lladdr {stranger} dev br0 nud permanent");
        fabric.ip(&NODE.map(line))?;
        for to in BALANCER {
            let outcome = connect(scene, at(to)?)?;
            let is_late = |error: &std::io::Error| error.kind() == ErrorKind::TimedOut;
            ensure!(outcome.as_ref().is_err_and(is_late), "{to}: {outcome:?}");
        }
        let counted = nft(scene, "list counter netdev flooded frames")?;
        ensure!(!counted.contains("packets 0 "), "no frame came to the node: {counted}");
        fabric.ip(&NODE.map(|to| format!("neigh delete {to} dev br0")))?;
        for to in BALANCER {
            client.wait_for(Via::Http, at(to)?, &[], FOLLOWS)?;
        }
        Ok(())
    })
}
