//! What every object of programs has.

/// The license as the kernel reads it: some helpers are only for programs under the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // No code here can panic: the verifier would refuse a program that reaches this loop.
    loop {}
}
