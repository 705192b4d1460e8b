//! Rows of failed connects to an endpoint, for Services with ejection. They are counted in the
//! endpoint's member, which the agent lists for these Services.

use topo_lb_common::failing::{Failing, is_told};
use topo_lb_common::members::{CHOSEN, Member, MemberKey, ONE_FAILURE};
use topo_lb_common::totals::Failure;

use crate::base::atomic::add_half;
use crate::base::maps::{FAILING, MEMBERS4, MEMBERS6};
use crate::socket::dialled::Dialled;

/// A connection was established: the row ends. Counts once for a connection.
#[inline(always)]
pub(crate) fn succeeded(dialled: &Dialled) {
    // SAFETY: a field of the socket's storage, which only callbacks of the socket write.
    unsafe { dialled.stored_failures.write(0) };
    let Some(state) = state(dialled) else { return };
    // SAFETY: an element of the map. Only a failure that ends at the same moment is lost.
    unsafe {
        let now = state.read_volatile();
        if now >= ONE_FAILURE {
            state.write_volatile(now & CHOSEN);
        }
    }
}

/// A connect failed: the row grows, and the agent hears of it when it is long enough.
#[inline(always)]
pub(crate) fn failed(dialled: &Dialled, failure: Failure) {
    let Some(state) = state(dialled) else { return };
    // SAFETY: an element of the map, to which all writers add, or begin a new row. The entry is this
    // program's until it is submitted.
    unsafe {
        add_half(state, ONE_FAILURE);
        let row = Member::failed_in_a_row(state.read_volatile());
        if !is_told(row, dialled.failures) {
            return;
        }
        // Without room, the agent hears of a later failure.
        let Some(mut entry) = FAILING.reserve_untyped::<Failing>(0) else { return };
        let (address, service, port) =
            (dialled.endpoint.address, dialled.key.service, dialled.port);
        entry.as_mut_ptr().write(Failing {
            address,
            service,
            port,
            failure: failure as u8,
            reserved: 0,
        });
        entry.submit(0);
    }
}

/// The state of the endpoint's member; `None` if the endpoint does not serve any more.
#[inline(always)]
fn state(dialled: &Dialled) -> Option<*mut u32> {
    let Dialled { key, endpoint, port, .. } = dialled;
    let (service, port, reserved) = (key.service, *port, 0);
    let address = endpoint.address;
    let member = match address {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
            MEMBERS4.get_ptr_mut(MemberKey { service, address: [a, b, c, d], port, reserved })
        }
        address => MEMBERS6.get_ptr_mut(MemberKey { service, address, port, reserved }),
    }?;
    // SAFETY: a field of an element of the map.
    Some(unsafe { &raw mut (*member).state })
}
