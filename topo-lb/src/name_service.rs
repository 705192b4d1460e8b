//! How names of hosts and users are looked up in a static program. glibc would load what
//! /etc/nsswitch.conf names: libraries of the host, for the host's own version of glibc. In a static
//! program they crash, or do nothing.

/// Restricts look-ups to what is linked into a static program: files and DNS. Does nothing in others.
/// Call it before other threads start.
pub fn keep_to_own() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{CStr, c_char, c_int};

        unsafe extern "C" {
            /// <nss.h> of glibc: returns 0, or -1 for a database that it does not know.
            fn __nss_configure_lookup(database: *const c_char, service: *const c_char) -> c_int;
        }
        let services: [(&CStr, &CStr); 2] = [(c"hosts", c"files dns"), (c"passwd", c"files")];
        for (database, service) in services {
            // SAFETY: both are texts that end with zero, and live for ever; no other thread looks
            // anything up.
            unsafe { __nss_configure_lookup(database.as_ptr(), service.as_ptr()) };
        }
    }
}
