//! The answer of a program, and its interpretation: anything but a clear answer means hold.

use serde::Deserialize;

use crate::model::{Object, Word};

/// What becomes of the change. The texts tell people who decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Land,
    Hold(String),
    Deny(String),
}

/// What a program writes to its standard output: one JSON object and nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    decision: Word<Decision>,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Land,
    Hold,
    Deny,
}

/// A reason is a sentence, not a file: `status` shows it.
const REASON_CHARS_MAX: usize = 500;

impl Answer {
    /// Interprets what `program` wrote before it exited with status 0.
    pub(super) fn parse(program: &str, output: &[u8]) -> Self {
        let said: Said = match serde_json::from_slice(output) {
            Ok(Object(said)) => said,
            Err(_) if output.trim_ascii().is_empty() => return Self::unclear(program, "it said nothing"),
            Err(err) => return Self::unclear(program, &format!("what it said is no answer: {err}")),
        };
        let reason: String = said.reason.chars().take(REASON_CHARS_MAX).collect();
        let told = if reason.is_empty() { program.to_owned() } else { format!("{program}: {reason}") };
        match said.decision.0 {
            Decision::Land => Self::Land,
            Decision::Hold => Self::Hold(told),
            Decision::Deny => Self::Deny(told),
        }
    }

    pub(super) fn unclear(program: &str, why: &str) -> Self {
        Self::Hold(format!("{program}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_answer_counts() {
        for (output, want) in [
            (r#"{"decision":"land"}"#, Answer::Land),
            (" {\"decision\": \"land\", \"reason\": \"fine\"}\n\n", Answer::Land),
            (r#"{"decision":"hold"}"#, Answer::Hold("p".to_owned())),
            (r#"{"decision":"hold","reason":"too bold"}"#, Answer::Hold("p: too bold".to_owned())),
            (r#"{"reason":"never","decision":"deny"}"#, Answer::Deny("p: never".to_owned())),
        ] {
            assert_eq!(Answer::parse("p", output.as_bytes()), want, "{output}");
        }
        let long = format!(r#"{{"decision":"deny","reason":"{}"}}"#, "é".repeat(9000));
        assert_eq!(Answer::parse("p", long.as_bytes()), Answer::Deny(format!("p: {}", "é".repeat(REASON_CHARS_MAX))));
    }

    #[test]
    fn anything_else_means_hold() {
        for output in [
            "",
            " \n",
            "land",
            "\"land\"",
            "{}",
            "null",
            "[]",
            r#"{"decision":"Land"}"#,
            r#"{"decision":"yes"}"#,
            r#"{"decision":"land""#,
            r#"{"decision":"land"}{"decision":"land"}"#,
            r#"{"decision":"land"} and more"#,
            r#"{"decision":"land","decision":"deny"}"#,
            r#"{"decision":"land","certainty":1}"#,
            r#"{"decision":["land"]}"#,
            r#"{"decision":{"land":null}}"#,
            r#"["land"]"#,
            r#"["land",""]"#,
            r#"[["land"],""]"#,
            r#"{"decision":"land","reason":7}"#,
            "{\"decision\":\"land\",\"reason\":\"\u{0}\"}",
        ] {
            assert!(matches!(Answer::parse("p", output.as_bytes()), Answer::Hold(_)), "{output:?}");
        }
        assert!(matches!(Answer::parse("p", b"{\"decision\":\"land\",\"reason\":\"\xff\"}"), Answer::Hold(_)));
        let deep = "[".repeat(60 << 10);
        assert!(matches!(Answer::parse("p", deep.as_bytes()), Answer::Hold(_)));
    }
}
