//! Text that a terminal does not obey. Names and contents come from programs that nobody trusts yet.

/// A name, on one line: everything but printable text is spelled out.
pub fn escape_name(bytes: &[u8]) -> String {
    escape(bytes, |character| is_obeyed(character) || character == '\u{2028}' || character == '\u{2029}')
}

/// Content: as a name, but lines and tabs stay.
pub fn escape_content(bytes: &[u8]) -> String {
    escape(bytes, |character| is_obeyed(character) && !matches!(character, '\n' | '\t'))
}

fn escape(bytes: &[u8], spell_out: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match spell_out(character) {
                true => text.extend(character.escape_default()),
                false => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Control characters (C1 too), and those that reorder or hide text: "Trojan Source", CVE-2021-42574.
fn is_obeyed(character: char) -> bool {
    let reorders = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
    let hides = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    character.is_control() || reorders || hides
}
