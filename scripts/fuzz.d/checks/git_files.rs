//! Files of git's that fettlefs reads by itself: an index, and a config file of which the risky keys are wanted.

use fettlefs::model::RelPath;
use fettlefs::policy::ignored::Index;
use fettlefs::policy::rules::risky_git_config_change;

pub fn check(bytes: &[u8]) {
    if let Ok(index) = Index::read(bytes) {
        index.tracked.any_within(&RelPath::root());
    }
    let config = RelPath::parse(b".git/config").expect("a path");
    let (old, new) = bytes.split_at(bytes.len() / 2);
    risky_git_config_change(&config, old, new);
    let unchanged = risky_git_config_change(&config, new, new);
    assert!(matches!(unchanged.as_deref(), None | Some("(unreadable)")), "nothing changed: {unchanged:?}");
}
