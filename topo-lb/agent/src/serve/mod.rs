//! How this program serves: each listener on a thread of its own, and no client at the cost of another.
//!
//! | file | idea |
//! |---|---|
//! | `listen` | the addresses on which the agent listens |
//! | `door` | connections from accept to close |
//! | `crowd` | which connection is evicted when there are too many |
//! | `head` | the head of a request |

pub mod crowd;
pub mod door;
mod head;
pub mod listen;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use listen::{Listen, ListenError};

/// Runs `work` on a thread of its own.
///
/// # Errors
/// The thread cannot be created.
pub fn run(name: &str, work: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))?;
    Ok(())
}

/// Raises the limit of descriptors of this process, and returns it. Many container runtimes set the
/// soft limit to 1,024 for programs that use select(2); Go's runtime raises it, too.
#[must_use]
pub fn descriptors() -> Option<u64> {
    const ENOUGH: u64 = 16 * 1024;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if current.is_none_or(|current| current >= wanted) {
        return current;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    if raised.is_ok() { Some(wanted) } else { current }
}

/// Most connections that wait at one listener. Most descriptors are for the rest of the agent.
#[must_use]
pub fn waiting(descriptors: Option<u64>) -> usize {
    const MOST: usize = 2048;
    let share = descriptors.map_or(MOST, |all| usize::try_from(all / 8).unwrap_or(MOST));
    share.clamp(8, MOST)
}
