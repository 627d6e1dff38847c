//! `.fettle.toml` and the user's `config.toml`, which share the same keys.

use serde::Deserialize;
use toml::{Spanned, Value};

use super::{Key, Layer, Origin, SettingsError};
use crate::model::Object;
use crate::policy::rules::{Action, Rule};

/// One settings file, parsed and validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsFile {
    pub values: Layer,
    pub rules: Vec<Rule>,
}

/// A value of any TOML type: its text is parsed like that of a flag.
type Field = Option<Spanned<Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileToml {
    floor: Field,
    ceil: Field,
    ratio: Field,
    ttl: Field,
    window: Field,
    burst: Field,
    approve: Field,
    on_hold: Field,
    #[serde(default)]
    risk: Object<RiskToml>,
    #[serde(default)]
    hooks: Object<HooksToml>,
    #[serde(default)]
    backups: Object<BackupsToml>,
    #[serde(default)]
    limits: Object<LimitsToml>,
    #[serde(default)]
    rule: Vec<Spanned<Object<RuleToml>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RiskToml {
    placeholder: Field,
    conflict_markers: Field,
    private_key: Field,
    token: Field,
    executable: Field,
    binary: Field,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct HooksToml {
    pre_write: Field,
    timeout: Field,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct BackupsToml {
    max_age: Field,
    max_per_path: Field,
    quota: Field,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LimitsToml {
    upper: Field,
    held: Field,
    open: Field,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleToml {
    #[serde(rename = "match")]
    pattern: String,
    exe: Option<String>,
    action: Spanned<String>,
}

impl SettingsFile {
    /// `name` is what messages call the file.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, SettingsError> {
        let source = Source::new(name, text)?;
        let file: FileToml = toml::from_str(source.text).map_err(|err| source.refused(&err))?;
        let rules = file.rule.iter().map(|rule| source.rule(rule)).collect::<Result<_, _>>()?;
        let mut values = Layer::default();
        for (key, field) in file.fields() {
            if let Some(value) = field {
                values.add(key, as_text(value.get_ref()), source.at(value.span().start))?;
            }
        }
        Ok(Self { values, rules })
    }
}

impl FileToml {
    fn fields(self) -> [(Key, Field); Key::ALL.len()] {
        [
            (Key::Floor, self.floor),
            (Key::Ceil, self.ceil),
            (Key::Ratio, self.ratio),
            (Key::Ttl, self.ttl),
            (Key::Window, self.window),
            (Key::Burst, self.burst),
            (Key::Approve, self.approve),
            (Key::OnHold, self.on_hold),
            (Key::RiskPlaceholder, self.risk.0.placeholder),
            (Key::RiskConflictMarkers, self.risk.0.conflict_markers),
            (Key::RiskPrivateKey, self.risk.0.private_key),
            (Key::RiskToken, self.risk.0.token),
            (Key::RiskExecutable, self.risk.0.executable),
            (Key::RiskBinary, self.risk.0.binary),
            (Key::PreWrite, self.hooks.0.pre_write),
            (Key::HookTimeout, self.hooks.0.timeout),
            (Key::BackupAge, self.backups.0.max_age),
            (Key::BackupsPerPath, self.backups.0.max_per_path),
            (Key::BackupQuota, self.backups.0.quota),
            (Key::LimitUpper, self.limits.0.upper),
            (Key::LimitHeld, self.limits.0.held),
            (Key::LimitOpen, self.limits.0.open),
        ]
    }
}

/// A file's name and text, for messages that say where in the file something stands.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    fn new(name: &'a str, text: &'a [u8]) -> Result<Self, SettingsError> {
        match std::str::from_utf8(text) {
            Ok(text) => Ok(Self { name, text }),
            Err(err) => {
                let line = 1 + text[..err.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
                let at = Origin::File { name: name.to_owned(), line };
                Err(SettingsError::File { at, what: "not UTF-8".to_owned() })
            }
        }
    }

    fn at(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        Origin::File { name: self.name.to_owned(), line: 1 + before.filter(|byte| **byte == b'\n').count() }
    }

    fn refused(&self, err: &toml::de::Error) -> SettingsError {
        let at = self.at(err.span().map_or(0, |span| span.start));
        let what = match err.message() {
            // The only array of tables.
            "invalid type: map, expected a sequence" => "a rule begins with `[[rule]]`, in double brackets".to_owned(),
            message => message.replace('\n', " "),
        };
        SettingsError::File { at, what }
    }

    fn rule(&self, rule: &Spanned<Object<RuleToml>>) -> Result<Rule, SettingsError> {
        let at = self.at(rule.span().start).to_string();
        let Object(RuleToml { pattern, exe, action }) = rule.get_ref();
        let action = Action::from_name(action.get_ref()).ok_or_else(|| {
            let what = format!("action = {:?}: must be {}", action.get_ref(), Action::NAMES);
            SettingsError::File { at: self.at(action.span().start), what }
        })?;
        Ok(Rule { pattern: pattern.clone(), exe: exe.clone(), action, at })
    }
}

/// A string without its quotes, anything else as TOML writes it.
fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
