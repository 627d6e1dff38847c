//! File names as git writes them in diff headers, so that `git apply` reads them back byte for byte.

/// Returns the name as it is, or in double quotes with C escapes if it has bytes that git would quote (`core.quotePath`).
pub fn quote_path(path: &[u8]) -> Vec<u8> {
    let escaped: Vec<u8> = path.iter().flat_map(|&byte| escape(byte)).collect();
    if escaped == path { escaped } else { [b"\"", escaped.as_slice(), b"\""].concat() }
}

fn escape(byte: u8) -> Vec<u8> {
    match byte {
        b'\x07' => b"\\a".to_vec(),
        b'\x08' => b"\\b".to_vec(),
        b'\t' => b"\\t".to_vec(),
        b'\n' => b"\\n".to_vec(),
        b'\x0b' => b"\\v".to_vec(),
        b'\x0c' => b"\\f".to_vec(),
        b'\r' => b"\\r".to_vec(),
        b'"' | b'\\' => vec![b'\\', byte],
        0..b' ' | 0x7f.. => format!("\\{byte:03o}").into_bytes(),
        b' '..0x7f => vec![byte],
    }
}
