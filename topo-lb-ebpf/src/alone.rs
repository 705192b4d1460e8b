//! The steps of tc's programs, each a function that the kernel's verifier looks at once and by itself
//! (51c39bb1d5d1, "bpf: Introduce function-by-function verification", Linux 5.6). Others it looks at
//! anew for every state in which they are called, and these programs would be too large for it.
//!
//! Such a function takes a packet and gives a number, and nothing that was found out before the call
//! is known in it. Its name is for those who look at programs in the kernel.

use aya_ebpf::bindings::__sk_buff;

use crate::family::{V4, V6};
use crate::totals::Hook;
use crate::track::Track;
use crate::{icmp, refuse, tc};

/// An address family's steps: a verdict, or what is to be done next.
pub(crate) trait Alone: Track {
    /// `is_settled`: the connection's endpoint was seen to a moment ago; any number but zero.
    fn from_client(skb: *mut __sk_buff, is_settled: u32) -> i32;
    fn reconsider(skb: *mut __sk_buff) -> i32;
    fn open(skb: *mut __sk_buff) -> i32;
    fn expect_answers(skb: *mut __sk_buff) -> i32;
    fn stray(skb: *mut __sk_buff) -> i32;
    fn leave_from_client(skb: *mut __sk_buff) -> i32;
    fn error_from_client(skb: *mut __sk_buff) -> i32;
    fn reset(skb: *mut __sk_buff) -> i32;
    fn unreachable(skb: *mut __sk_buff) -> i32;
    fn to_client(skb: *mut __sk_buff) -> i32;
    fn leave_to_client(skb: *mut __sk_buff) -> i32;
    fn error_to_client(skb: *mut __sk_buff) -> i32;
}

macro_rules! alone {
    ($family:ty: $($name:ident: $step:ident = |$skb:ident $(, $flag:ident)?| $work:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name($skb: *mut __sk_buff $(, $flag: u32)?) -> i32 {
                $work
            }
        )*

        impl Alone for $family {
            $(
                #[inline(always)]
                fn $step($skb: *mut __sk_buff $(, $flag: u32)?) -> i32 {
                    $name($skb $(, $flag)?)
                }
            )*
        }
    };
}

alone! { V4:
    from_client4: from_client = |skb, is_settled| tc::from_client::<V4>(skb, is_settled != 0);
    reconsider4: reconsider = |skb| tc::reconsider::<V4>(skb);
    open4: open = |skb| tc::open::<V4>(skb);
    expect_answers4: expect_answers = |skb| tc::expect_answers::<V4>(skb);
    stray4: stray = |skb| tc::stray::<V4>(skb);
    leave_from_client4: leave_from_client = |skb| tc::leave_fragments::<V4>(skb, Hook::Ingress);
    error_from_client4: error_from_client = |skb| icmp::translate::<V4>(skb, Hook::Ingress);
    reset4: reset = |skb| refuse::reset::<V4>(skb);
    unreachable4: unreachable = |skb| refuse::unreachable::<V4>(skb);
    to_client4: to_client = |skb| tc::to_client::<V4>(skb);
    leave_to_client4: leave_to_client = |skb| tc::leave_fragments::<V4>(skb, Hook::Egress);
    error_to_client4: error_to_client = |skb| icmp::translate::<V4>(skb, Hook::Egress);
}

alone! { V6:
    from_client6: from_client = |skb, is_settled| tc::from_client::<V6>(skb, is_settled != 0);
    reconsider6: reconsider = |skb| tc::reconsider::<V6>(skb);
    open6: open = |skb| tc::open::<V6>(skb);
    expect_answers6: expect_answers = |skb| tc::expect_answers::<V6>(skb);
    stray6: stray = |skb| tc::stray::<V6>(skb);
    leave_from_client6: leave_from_client = |skb| tc::leave_fragments::<V6>(skb, Hook::Ingress);
    error_from_client6: error_from_client = |skb| icmp::translate::<V6>(skb, Hook::Ingress);
    reset6: reset = |skb| refuse::reset::<V6>(skb);
    unreachable6: unreachable = |skb| refuse::unreachable::<V6>(skb);
    to_client6: to_client = |skb| tc::to_client::<V6>(skb);
    leave_to_client6: leave_to_client = |skb| tc::leave_fragments::<V6>(skb, Hook::Egress);
    error_to_client6: error_to_client = |skb| icmp::translate::<V6>(skb, Hook::Egress);
}
