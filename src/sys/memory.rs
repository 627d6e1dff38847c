//! What memory this process keeps of what it needs no more.

use super::process::status_number;

/// How much more than before may stay after a request: the next one is served from it.
const MAY_STAY: usize = 8 << 20;

/// Has this process give memory back that it needs no more. Left alone, the C library keeps apart what each thread frees,
/// eight times as much as there are processors, and after one large file all that any later one took.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn return_freed() -> bool {
    // Whole files are read to be compared: these come from the kernel and go back to it.
    let set = [(libc::M_ARENA_MAX, 2), (libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_TRIM_THRESHOLD, 1 << 20)];
    // SAFETY: takes two numbers.
    set.iter().all(|(what, value)| unsafe { libc::mallopt(*what, *value) } == 1)
}

/// Other C libraries have no such settings.
#[cfg(not(target_env = "gnu"))]
pub fn return_freed() -> bool {
    true
}

/// Runs what may need much for a moment, and gives back what that has freed between things that stay: ten thousand changes
/// confirmed are 70 MiB. By itself the C library gives back only what lies behind all that is in use.
pub fn returned_after<T>(work: impl FnOnce() -> T) -> T {
    let before = own();
    let done = work();
    if own() > before.saturating_add(MAY_STAY) {
        return_between();
    }
    done
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn return_between() {
    // SAFETY: only gives whole pages of the library's free pieces to the kernel.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn return_between() {}

/// What this process has in memory that is no file's. Nothing where it cannot be told, and then nothing is given back.
fn own() -> usize {
    let kibibytes = status_number(std::process::id(), "RssAnon:").unwrap_or(0);
    kibibytes as usize * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 1 << 10;
    const PIECES: usize = 256 << 10;

    /// Of a hundred pieces one stays: no page at the end is free, and nearly all others are.
    fn most_are_freed() -> Vec<Vec<u8>> {
        let all: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; PIECE]).collect();
        all.into_iter().step_by(100).collect()
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_lies_between_things_in_use_is_given_back() {
        // Half of what was freed: the other tests of this process have theirs meanwhile.
        let half = PIECES * PIECE / 2;
        let before = own();
        let kept = most_are_freed();
        assert!(own() > before + half, "nothing stayed: {} of {before}", own());
        drop(kept);

        let before = own();
        let kept = returned_after(most_are_freed);
        assert!(own() < before + half, "{} of {before}", own());
        assert_eq!(kept.len(), PIECES.div_ceil(100));
    }
}
