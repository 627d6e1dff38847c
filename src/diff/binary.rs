//! Content that is not text, as git writes it in a patch: compressed, and in base 85 with git's digits (`base85.c`).

use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// The bytes on one line: as many as the letter in front of it can express.
const LINE_BYTES: usize = 52;

/// Contains the new content, and the old one for reversing the patch.
pub(super) fn binary_patch(old: &[u8], new: &[u8]) -> Vec<u8> {
    [b"GIT binary patch\n", literal(new).as_slice(), b"\n", &literal(old), b"\n"].concat()
}

fn literal(content: &[u8]) -> Vec<u8> {
    let mut out = format!("literal {}\n", content.len()).into_bytes();
    for line in compressed(content).chunks(LINE_BYTES) {
        out.push(length_letter(line.len()));
        out.extend(line.chunks(4).flat_map(in_base_85));
        out.push(b'\n');
    }
    out
}

fn compressed(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0; compress_bound(content.len())];
    let (compressed, code) = compress_slice(&mut out, content, DeflateConfig::default());
    assert_eq!(code, ReturnCode::Ok, "there is room for what cannot be compressed");
    let length = compressed.len();
    out.truncate(length);
    out
}

/// `A` to `Z` for 1 to 26 bytes, `a` to `z` for 27 to 52.
fn length_letter(bytes: usize) -> u8 {
    let bytes = u8::try_from(bytes).expect("a line is short");
    if bytes <= 26 { b'A' + bytes - 1 } else { b'a' + bytes - 27 }
}

/// Encodes up to four bytes, padded with zeros.
fn in_base_85(bytes: &[u8]) -> [u8; 5] {
    let mut four = [0; 4];
    four[..bytes.len()].copy_from_slice(bytes);
    let mut rest = u32::from_be_bytes(four);
    let mut digits = [0; 5];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 85) as usize];
        rest /= 85;
    }
    digits
}
