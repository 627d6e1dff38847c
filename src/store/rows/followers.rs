//! The followers of the log, and how far each has read: what they have not read yet stays a while longer than the rest.
//!
//! A follower is known by its process and by the number that it asks on from. Nothing about it is durable: one that is
//! gone, and one that lets four times the log gather before it reads on, keeps nothing.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::events::LOG_BYTES_MAX;
use crate::sys::process;

/// How many times its limit the log may reach for slow followers: one that stands still must not fill the disk.
pub(super) const FOLLOWED_TIMES_MAX: u64 = 4;
const _: () = assert!(LOG_BYTES_MAX * FOLLOWED_TIMES_MAX <= 64 << 20);

/// How many followers are remembered, of one process and in all. Past the first limit, the process's follower that asked
/// least recently is forgotten; past the second, one of the user who has the most. So no user pushes out another's.
const OF_ONE_MAX: usize = 16;
const OF_ALL_MAX: usize = 256;

/// How long a follower whose process cannot be seen counts as alive after it has asked: longer than a question waits.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(in crate::store) struct Followers(Mutex<Vec<Follower>>);

struct Follower {
    /// 0 if the process cannot be seen.
    pid: u32,
    uid: u32,
    /// The last event that it has read for sure, because it asked on from there.
    read: u64,
    /// The last event that it was told, and may not have received.
    told: u64,
    asked: Instant,
}

impl Follower {
    fn is_there(&self) -> bool {
        match self.pid {
            0 => self.asked.elapsed() < UNSEEN_FOR,
            pid => process::tgid(pid).is_some(),
        }
    }
}

impl Followers {
    /// Notes that a follower that has read up to `read` was told up to `told`.
    pub fn note(&self, (pid, uid): (u32, u32), read: u64, told: u64) {
        let mut all = self.0.lock();
        // It replaces the follower that goes on from what it was told, or asks again for what it did not receive.
        all.retain(|one| one.pid != pid || (one.told != read && one.read != read));
        if all.iter().filter(|one| one.pid == pid).count() >= OF_ONE_MAX {
            let first = all.iter().position(|one| one.pid == pid);
            first.map(|at| all.remove(at));
        }
        if all.len() >= OF_ALL_MAX {
            let of = |uid: u32| all.iter().filter(|one| one.uid == uid).count();
            let crowd = all.iter().map(|one| one.uid).max_by_key(|uid| of(*uid));
            let first = all.iter().position(|one| Some(one.uid) == crowd);
            first.map(|at| all.remove(at));
        }
        all.push(Follower { pid, uid, read, told, asked: Instant::now() });
    }

    /// Returns up to where all followers that are still there have read, or `None` if there are none.
    pub fn have_read(&self) -> Option<u64> {
        let mut all = self.0.lock();
        all.retain(Follower::is_there);
        all.iter().map(|one| one.read).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_as_far_as_it_asks_on_from_and_the_slowest_counts() {
        let (followers, own) = (Followers::default(), std::process::id());
        assert_eq!(followers.have_read(), None);
        followers.note((own, 0), 0, 0);
        followers.note((own, 0), 0, 10);
        assert_eq!(followers.have_read(), Some(0), "told is not received");
        followers.note((own, 0), 10, 10);
        assert_eq!(followers.have_read(), Some(10));
        // Another of the same process, from further back.
        followers.note((own, 0), 3, 3);
        assert_eq!(followers.have_read(), Some(3));
        followers.note((own, 0), 3, 20);
        followers.note((own, 0), 20, 20);
        assert_eq!(followers.have_read(), Some(10));
        // Nobody we can see, but a moment ago.
        followers.note((0, 0), 1, 1);
        assert_eq!(followers.have_read(), Some(1));
    }

    #[test]
    fn one_whose_process_is_gone_counts_no_more_and_one_process_is_no_crowd() {
        let followers = Followers::default();
        followers.note((u32::MAX >> 1, 0), 1, 1);
        assert_eq!(followers.have_read(), None);
        (0..1000).for_each(|at| followers.note((std::process::id(), 0), 2 * at, 2 * at));
        assert_eq!(followers.0.lock().len(), OF_ONE_MAX);
        assert_eq!(followers.have_read(), Some(2 * (1000 - OF_ONE_MAX as u64)));
    }

    #[test]
    fn many_followers_of_one_user_push_out_nobody_elses() {
        let followers = Followers::default();
        followers.note((std::process::id(), 0), 1, 1);
        (0..1000).for_each(|number| followers.note((number + 2, 1000), 5, 5));
        assert_eq!(followers.0.lock().len(), OF_ALL_MAX);
        assert!(followers.0.lock().iter().any(|one| one.uid == 0));
    }
}
