//! Makes text that a terminal or a shell cannot obey. Names and contents come from programs that nobody trusts yet.

/// Escapes a name for one line: everything but printable text is spelled out.
pub fn escape_name(bytes: &[u8]) -> String {
    escape(bytes, is_obeyed, |character, text| text.extend(character.escape_default()))
}

/// True if a shell takes this for one word and for nothing else.
pub fn is_plain_word(word: &str) -> bool {
    let is_plain = |character: char| character.is_alphanumeric() || "%+,-./:=@_".contains(character);
    !word.is_empty() && word.chars().all(is_plain)
}

/// Writes a word as a shell takes it for one, for a command line that is to be copied.
pub fn shell_word(word: &str) -> String {
    match is_plain_word(word) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Escapes content: like a name, but line breaks and tabs stay.
pub fn escape_content(bytes: &[u8]) -> String {
    let spell_out = |character| is_obeyed(character) && !matches!(character, '\n' | '\t');
    escape(bytes, spell_out, |character, text| text.extend(character.escape_default()))
}

/// Escapes JSON, one value on each line: like content, but with JSON's own escapes.
pub fn escape_json(lines: &[u8]) -> String {
    let spell_out = |character| is_obeyed(character) && character != '\n';
    escape(lines, spell_out, |character, text| {
        let units = character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
        text.push_str(&units);
    })
}

fn escape(bytes: &[u8], spell_out: impl Fn(char) -> bool, spell: impl Fn(char, &mut String)) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match spell_out(character) {
                true => spell(character, &mut text),
                false => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Control characters (C1 too), and those that reorder or hide text ("Trojan Source", CVE-2021-42574) or break its lines.
fn is_obeyed(character: char) -> bool {
    // Characters that reorder text are ignorable, too.
    let annotates = matches!(character, '\u{fff9}'..='\u{fffb}');
    let breaks_lines = matches!(character, '\u{2028}' | '\u{2029}');
    character.is_control() || is_ignorable(character) || annotates || breaks_lines
}

/// Default_Ignorable_Code_Point of Unicode 16 (DerivedCoreProperties.txt): characters that are shown as nothing at all.
/// Emoji use some of them, and so does text that means something else than it seems to.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
