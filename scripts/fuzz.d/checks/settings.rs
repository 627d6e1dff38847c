//! A `.fettle.toml`, as a cloned project may bring one: settings and rules or an error that names the place; and asking
//! the rules about any path.

use fettlefs::model::RelPath;
use fettlefs::policy::rules::{Entry, Place, RuleSet, Trust};
use fettlefs::policy::settings::{Settings, SettingsFile};

pub fn check(bytes: &[u8]) {
    let Ok(file) = SettingsFile::parse(".fettle.toml", bytes) else { return };
    if let Err(err) = Settings::layered(Settings::defaults(), [&file.values]) {
        assert!(!err.to_string().is_empty());
    }
    let Ok(rules) = RuleSet::compile(&[], &file.rules, Trust::Untrusted) else { return };
    for path in ["a", "src/a.rs", ".git/hooks/pre-commit", "d/.claude/x"] {
        let path = RelPath::parse(path.as_bytes()).expect("a path");
        let place = Place { path: &path, entry: Entry::File, ignored: None };
        rules.action(&place, None);
    }
}
