//! What a socket dialled, and where what its connection moves is counted.

use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_NOEXIST;
use topo_lb_common::backend::Locality;
use topo_lb_common::connected::Seen;
use topo_lb_common::far_endpoints::{FarEndpoint, Moved};
use topo_lb_common::totals::{Totals, TotalsKey};

use crate::base::family::{ConnectedOf, Family};
use crate::base::maps::{FAR_ENDPOINTS, TOTALS};

/// What a socket dialled, as its storage has it.
pub(crate) struct Dialled {
    pub(crate) key: TotalsKey,
    pub(crate) endpoint: FarEndpoint,
    /// The endpoint's port, host order.
    pub(crate) port: u16,
    /// How many failures in a row the agent hears of; zero for none, and once the connect has succeeded.
    pub(crate) failures: u8,
    /// The same in the socket's storage.
    pub(crate) stored_failures: *mut u8,
    /// What of the connection is counted already, in the socket's storage.
    pub(crate) seen: *mut Seen,
    /// Several TCP sockets have this storage: the subflows of MPTCP. Only their ends are counted.
    pub(crate) is_shared: bool,
}

impl Dialled {
    #[inline(always)]
    pub(crate) fn of<F: Family>(connected: NonNull<ConnectedOf<F>>) -> Self {
        let connected = connected.as_ptr();
        // SAFETY: fields of the socket's storage.
        unsafe {
            let endpoint = (&raw const (*connected).endpoint).read();
            let (service, tier) = ((*connected).service, (*connected).tier);
            let key = TotalsKey::new(service, F::locality(&endpoint), tier);
            let (address, port) = F::endpoint_parts(&endpoint);
            let endpoint = FarEndpoint { address: F::mapped(address) };
            let (stored_failures, seen) =
                (&raw mut (*connected).failures, &raw mut (*connected).seen);
            let failures = stored_failures.read();
            Self { key, endpoint, port, failures, stored_failures, seen, is_shared: false }
        }
    }

    /// The entry to count in. If there is no room for one, that of all other Service ports.
    #[inline(always)]
    pub(crate) fn totals(&self) -> Option<NonNull<Totals>> {
        if let Some(found) = TOTALS.get_ptr_mut(self.key) {
            return NonNull::new(found);
        }
        // Another CPU may insert it at the same time.
        let _ = TOTALS.insert(self.key, Totals::default(), BPF_NOEXIST.into());
        let others = TotalsKey::others(Locality::from_byte(self.key.locality));
        NonNull::new(TOTALS.get_ptr_mut(self.key).or_else(|| TOTALS.get_ptr_mut(others))?)
    }

    /// What connections to the endpoint moved; if there is no room, to all other endpoints.
    #[inline(always)]
    pub(crate) fn far_endpoint(&self) -> Option<NonNull<Moved>> {
        if let Some(found) = FAR_ENDPOINTS.get_ptr_mut(self.endpoint) {
            return NonNull::new(found);
        }
        // Another CPU may insert it at the same time.
        let _ = FAR_ENDPOINTS.insert(self.endpoint, Moved::default(), BPF_NOEXIST.into());
        let found = FAR_ENDPOINTS.get_ptr_mut(self.endpoint);
        NonNull::new(found.or_else(|| FAR_ENDPOINTS.get_ptr_mut(FarEndpoint::OTHERS))?)
    }
}
