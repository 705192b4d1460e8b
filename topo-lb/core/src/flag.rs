//! The names of the agent's flags, for sentences that advise one. The command line declares the flags; a test there
//! compares.

macro_rules! flags {
    ($($constant:ident $name:literal)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: &str = $name;
        )*
        /// All of them.
        pub const ALL: &[&str] = &[$($constant),*];
    };
}

flags! {
    ACCOUNTING "--accounting"
    API_SERVER "--api-server"
    CGROUP_ROOT "--cgroup-root"
    COUNT "--count"
    DIRECT_RETURN "--direct-return"
    DNS "--dns"
    DNS_SERVICE "--dns-service"
    EXCLUDE_ANNOTATED_PODS "--exclude-annotated-pods"
    EXCLUDE_NAMESPACES "--exclude-namespaces"
    EXTERNAL_DEVICES "--external-devices"
    EXTERNAL_IP_RANGES "--external-ip-ranges"
    HEALTHZ_BIND_ADDRESS "--healthz-bind-address"
    KUBECONFIG "--kubeconfig"
    KUBE_PROXY_REPLACEMENT "--kube-proxy-replacement"
    LISTEN "--listen"
    MANIFESTS "--manifests"
    MASQUERADE "--masquerade"
    MAX_CONNECTIONS "--max-connections"
    MAX_ENDPOINTS "--max-endpoints"
    MAX_FLOWS "--max-flows"
    MAX_SERVICES "--max-services"
    METRICS_LISTEN "--metrics-listen"
    NODE_NAME "--node-name"
    OBSERVE "--observe"
    PIN_DIR "--pin-dir"
    PROBE_SOCKET "--probe-socket"
    SCOPE "--scope"
    STATE_DIR "--state-dir"
    STEER_ANNOTATED_PODS "--steer-annotated-pods"
    STEER_NAMESPACES "--steer-namespaces"
    TCP_PEER "--tcp-peer"
    TC_DEVICES "--tc-devices"
    TOLERATE_PROGRAMS "--tolerate-programs"
}
