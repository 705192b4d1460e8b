//! By which names pods ask for the images of a cluster.
//!
//! The lab's own pods always use the same names. Kubernetes' tests have others in each version, and
//! `e2e.test --list-images` prints them.

/// An archive, and its names.
#[derive(Debug)]
pub(super) struct Names {
    /// The archive's name without its end.
    pub(super) archive: &'static str,
    /// Those that it always has: of the lab's own pods and of Kubernetes 1.20's tests.
    own: &'static [&'static str],
    /// The images of Kubernetes' tests that it stands in for, by the last parts of their names without tags. Those
    /// of DNS call only `dig` and `getent` of jessie-dnsutils (since 1.33 glibc-dns-testing), and those of
    /// EndpointSlices only want nginx to run.
    images: &'static [&'static str],
}

/// All of them. What the specs of Services need is enough.
pub(super) const ALL: [Names; 3] = [
    Names {
        archive: "pause",
        own: &["k8s.gcr.io/pause:3.2", "registry.k8s.io/pause:3.10"],
        images: &["pause"],
    },
    Names { archive: "busybox", own: &["docker.io/library/busybox:1.29"], images: &["busybox"] },
    Names {
        archive: "agnhost",
        own: &[
            "k8s.gcr.io/e2e-test-images/agnhost:2.21",
            "gcr.io/kubernetes-e2e-test-images/jessie-dnsutils:1.0",
            "docker.io/library/nginx:1.14-alpine",
        ],
        images: &["agnhost", "jessie-dnsutils", "glibc-dns-testing", "nginx"],
    },
];

impl Names {
    /// The names, with those of what `e2e.test --list-images` has printed.
    pub(super) fn with<'l>(&self, listed: &'l str) -> Vec<&'l str> {
        let is_meant = |name: &&str| {
            let last = name.rsplit('/').next().unwrap_or_default();
            let image = last.split([':', '@']).next().unwrap_or_default();
            self.images.contains(&image)
        };
        let mut names = self.own.to_vec();
        names.extend(listed.lines().map(str::trim).filter(is_meant));
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_the_names_of_the_tests_of_a_version() {
        let listed = "\
            registry.k8s.io/e2e-test-images/agnhost:2.63.0\n\
            invalid.registry.k8s.io/invalid/alpine:3.1\n\
            registry.k8s.io/e2e-test-images/busybox:1.37.0-1\n\
            registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0\n\
            registry.k8s.io/e2e-test-images/nginx:1.27-0\n\
            registry.k8s.io/e2e-test-images/regression-issue-74839:1.5\n\
            registry.k8s.io/pause:3.10\n";
        let added = |archive: &str| {
            let names = ALL.iter().find(|it| it.archive == archive).unwrap();
            let own = names.with("");
            assert_eq!(own.len(), names.own.len());
            let mut all = names.with(listed);
            all.retain(|name| !own.contains(name));
            all
        };
        assert_eq!(
            added("agnhost"),
            [
                "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
                "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
                "registry.k8s.io/e2e-test-images/nginx:1.27-0",
            ]
        );
        assert_eq!(added("busybox"), ["registry.k8s.io/e2e-test-images/busybox:1.37.0-1"]);
        assert!(added("pause").is_empty());
    }
}
