//! topo-lb's agent.
